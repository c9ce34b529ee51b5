"""The result of the background verification, kept beside the pipeline's state.

``<log>/pipelines/<name>/verify.json`` is written after each table by whoever runs the pipeline,
and read by ``pgtide status``. Keys, never other values. No Spark here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pgtide.errors import PgtideError, PipelineError
from pgtide.log.own_files import understood
from pgtide.log.storage import Storage
from pgtide.pipeline.state import now
from pgtide.pipeline.state_file import PIPELINES
from pgtide.verify.report import PipelineReport, TableReport

KEYS = 10  # of a differing table that are kept

FIELDS = ("started_at", "finished_at", "tables", "rows", "differing", "refused", "error")


class VerifyFile:
    """One pipeline's result on disk."""

    def __init__(self, log: Storage, pipeline: str) -> None:
        self._log = log
        self._path = f"{PIPELINES}/{pipeline}/verify.json"
        self._pipeline = pipeline

    def load(self) -> dict[str, Any] | None:
        """What the last pass found; None when there was none."""
        content = self._log.read(self._path)
        if content is None:
            return None
        what, hint = "the result of the last verification", "Delete it: the next pass writes it."
        with understood(what, f"{self._path} in the log", hint=hint, error=PipelineError):
            fields = json.loads(content)
            return {name: fields[name] for name in FIELDS}

    def save(self, result: Mapping[str, Any]) -> None:
        self._log.replace(self._path, json.dumps(result, ensure_ascii=False).encode())


def begun() -> dict[str, Any]:
    """A pass that has looked at nothing yet."""
    return {
        "started_at": _now(),
        "finished_at": None,
        "tables": 0,
        "rows": 0,
        "differing": [],
        "refused": {},
        "error": None,
    }


def add(result: dict[str, Any], report: PipelineReport) -> None:
    """Add what was found of some tables."""
    if report.refused:
        result["refused"]["*"] = report.refused
    for table in report.tables:
        if table.refused:
            result["refused"][table.table] = table.refused
            continue
        result["tables"] += 1
        result["rows"] += table.rows
        if not table.equal:
            result["differing"].append(_differing(table))


def finish(result: dict[str, Any], error: PgtideError | None) -> None:
    """The pass is over."""
    result["finished_at"] = _now()
    if error is not None:
        result["error"] = {"message": error.message, "detail": error.detail, "hint": error.hint}


def _differing(table: TableReport) -> dict[str, Any]:
    return {
        "table": table.table,
        "missing": table.missing,
        "extra": table.extra,
        "different": table.different,
        "note": table.note,
        "keys": [list(one.key) for one in table.differences[:KEYS]],
    }


def _now() -> str:
    return now().isoformat(timespec="milliseconds")
