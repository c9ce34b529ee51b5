"""Write the reference pages from the code, so that they cannot drift from it.

python scripts/reference.py            write docs/reference/cli.md and configuration.md
python scripts/reference.py --check    exit 1 if they are not what would be written
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from pgtide.cli import COMMANDS, load_command
from pgtide.cli import run_command as run
from pgtide.config.connection_string import ConnectionString
from pgtide.config.model import Config, Verify
from pgtide.config.sinks import PivotSettings, SinkSettings

PLACE = Path(__file__).parents[1] / "docs" / "reference"
NOTICE = "<!-- Written by scripts/reference.py: change the code and run `make docs`. -->"

EXIT_CODES = """\
Exit codes: 0 fine, 1 failed at run time or a check failed, 2 wrong usage or configuration,
3 something is missing in the environment, 130 interrupted. With `--json` an error is one object
on stderr: `{"error": {"type", "message", "detail", "hint", "exit_code"}}`."""

LOADING = """\
Settings come from a YAML file (`pgtide.yaml`, or `-c FILE`). `${NAME}` and `${NAME:-default}` in
its values are replaced from the environment (`$${` is a literal `${`), and variables such as
`PGTIDE_LOG__FLUSH_INTERVAL=1s` override it. Without a file, such variables alone are enough.
Durations take ms, s, m, h, d; sizes take B, kB, MB, GB and count in 1024 as Postgres does. A
setting that does not exist is an error that names the nearest one.

```yaml
source:
  url: postgresql://pgtide@db.example/shop    # the password: PGPASSWORD, ~/.pgpass or ${NAME}
  tables: ["public.*", "!public.audit_*"]
log:
  path: ./tide/log
  retention: 7d
pipelines:
  lake:
    sink: {type: delta, path: ./tide/lake, mode: mirror}
    tables: ["public.*"]
```"""


def command_line() -> str:
    paths: list[str] = [""]
    for name in COMMANDS:
        paths += _paths(name, load_command(name))
    parts = [NOTICE, "# Command line", EXIT_CODES]
    for path in paths:
        parts += [f"## pgtide {path}".rstrip(), f"```\n{_help(path)}\n```"]
    return "\n\n".join(parts) + "\n"


def _paths(name: str, command: Any) -> list[str]:
    children = getattr(command, "commands", {})
    return [
        name,
        *(path for child in children for path in _paths(f"{name} {child}", children[child])),
    ]


def _help(path: str) -> str:
    os.environ["COLUMNS"] = "80"  # or the width of this terminal would decide
    with redirect_stdout(StringIO()) as shown:
        run([*path.split(), "--help"])
    return "\n".join(line.rstrip() for line in shown.getvalue().strip().splitlines())


def configuration() -> str:
    parts = [NOTICE, "# Configuration", LOADING]
    for title, section in _sections():
        rows = [
            f"| `{name}` | {_kind(f)} | {_default(f)} | {' '.join((f.description or '').split())} |"
            for name, f in section.model_fields.items()
        ]
        table = "\n".join(["| setting | type | default | meaning |", "|---|---|---|---|", *rows])
        parts += [f"## {title}", section.__doc__ or "", table]
    return "\n\n".join(parts) + "\n"


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in Config.model_fields.items():
        annotation: Any = field.annotation
        if get_origin(annotation) is dict:
            yield f"{name}.NAME", get_args(annotation)[1]
        else:
            yield name, annotation
    for sink in get_args(get_args(SinkSettings)[0]):
        (kind,) = get_args(sink.model_fields["type"].annotation)
        yield f"pipelines.NAME.sink, type {kind}", sink
    yield "pipelines.NAME.sink.pivot", PivotSettings
    yield "pipelines.NAME.verify", Verify


def _kind(field: FieldInfo) -> str:
    """The type as a reader of YAML sees it."""
    annotation = _bare(field.annotation)
    # Sizes are read from text such as 64MB, durations are the only fractions.
    sized = any(isinstance(part, BeforeValidator) for part in field.metadata)
    whole = "size" if sized else "number"
    names = {float: "duration", int: whole, str: "text", bool: "true, false"}
    names[ConnectionString] = "connection string"
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if annotation in names:
        return names[annotation]
    return "list" if get_origin(annotation) is list else "section"


def _bare(annotation: Any) -> Any:
    """The type itself: without what it may be instead (None) and how it is checked."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        left = [part for part in get_args(annotation) if part is not type(None)]
        return _bare(left[0]) if len(left) == 1 else annotation
    return annotation


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    kind, value = _kind(field), field.default
    if value is None or value in ({}, []) or isinstance(value, BaseModel):
        return ""
    if kind == "duration":
        return f"`{_quantity(value, {86400: 'd', 3600: 'h', 1: 's', 0.001: 'ms'})}`"
    if kind == "size":
        return f"`{_quantity(value, {1 << 30: 'GB', 1 << 20: 'MB', 1 << 10: 'kB'})}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _quantity(value: float, units: dict[Any, str]) -> str:
    factor = next(factor for factor in units if value >= factor)
    return f"{value / factor:g}{units[factor]}"


PAGES = {"cli.md": command_line, "configuration.md": configuration}


def main(arguments: list[str]) -> int:
    stale = [name for name, page in PAGES.items() if _text(PLACE / name) != page()]
    if arguments == ["--check"]:
        for name in stale:
            print(f"docs/reference/{name} is not up to date: run make docs")
        return 1 if stale else 0
    for name in stale:
        (PLACE / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 0


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
