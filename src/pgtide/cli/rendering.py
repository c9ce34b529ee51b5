"""How errors and log lines look on stderr: plain, coloured on a terminal, or one JSON object."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

from pgtide.errors import PgtideError

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def configure_logging(level: str) -> None:
    """One handler on pgtide's own logger; other libraries keep what their users set."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logger = logging.getLogger("pgtide")
    logger.handlers = [handler]
    logger.setLevel(level.upper())


def error_document(error: PgtideError) -> dict[str, Any]:
    """An error as JSON, wherever one is shown."""
    return {
        "type": type(error).__name__,
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
        "exit_code": error.exit_code,
    }


def render_error(error: PgtideError, *, as_json: bool) -> int:
    """Print an error and return the exit code it asks for."""
    if as_json:
        print(json.dumps({"error": error_document(error)}, ensure_ascii=False), file=sys.stderr)
        return error.exit_code
    lines = [("error: ", error.message), ("", error.detail), ("hint: ", error.hint)]
    for label, text in lines:
        if text:
            _print_labelled(label, text)
    return error.exit_code


def render_unexpected(error: Exception, log_level: str, *, as_json: bool) -> int:
    """A defect: where it happened. Not what it says, which may quote a row or a secret."""
    if log_level == "debug":
        traceback.print_exception(error)
    failure = PgtideError(
        f"unexpected {type(error).__name__}{_origin(error)}",
        hint="run it again with --log-level debug for the traceback, and report it",
    )
    return render_error(failure, as_json=as_json)


def _origin(error: Exception) -> str:
    """The innermost line of our own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "pgtide" in Path(frame.filename).parts]
    return f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _print_labelled(label: str, text: str) -> None:
    if not sys.stderr.isatty():
        print(f"{label}{text}", file=sys.stderr)
        return
    # Here, because --help and scripts should not wait for rich.
    from rich.console import Console
    from rich.text import Text

    styles = {"error: ": "bold red", "hint: ": "bold cyan"}
    Console(stderr=True).print(Text.assemble((label, styles.get(label, "")), text), soft_wrap=True)
