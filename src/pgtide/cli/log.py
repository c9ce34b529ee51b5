"""``pgtide log``: look at the change log, and maintain it by hand."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgtide.cli.invocation import Invocation

if TYPE_CHECKING:
    from pgtide.log.event import Event
    from pgtide.log.reader import Log
    from pgtide.log.readers import Reader
    from pgtide.position import Position

command = typer.Typer(
    help="Look at the change log and maintain it.",
    epilog="\b\nExample:\n  pgtide log tail --follow",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Format(StrEnum):
    native = "native"
    debezium = "debezium"
    pgstream = "pgstream"
    pg_flo = "pg_flo"


@command.command()
def tail(
    ctx: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", "-t", metavar="PATTERN", help="Only such tables; repeatable."),
    ] = None,
    start: Annotated[
        str,
        typer.Option("--from", metavar="POSITION", help="LSN, LSN:SEQ, beginning or now."),
    ] = "beginning",
    format: Annotated[Format, typer.Option("--format", help="Shape of the JSON.")] = Format.native,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="Stop after so many events.")
    ] = None,
) -> None:
    """Print events in order, one JSON object per line.

    With --table, events that belong to no table (messages, some DDL) are left out. Shapes:
    native (the log's own), debezium, pgstream, pg_flo.

    \b
    Examples:
      pgtide log tail --from 16/B374D848 --limit 10
      pgtide log tail --follow --from now --table 'public.*' --format debezium
    """
    invocation = ctx.ensure_object(Invocation)
    stopped = threading.Event()

    def interrupt(signal_number: int, frame: object) -> None:
        # Python drops what is raised while it is in a destructor or in a callback.
        stopped.set()
        raise KeyboardInterrupt

    # Ctrl-C means that it was enough, as does a pipe that closes.
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    with suppress(KeyboardInterrupt):
        _print_events(invocation, follow, table, start, format, limit, stopped.is_set)


def _print_events(
    invocation: Invocation,
    follow: bool,
    table: list[str] | None,
    start: str,
    format: Format,
    limit: int | None,
    stop: Callable[[], bool],
) -> None:
    from pgtide.config import TablePatterns
    from pgtide.log.formats import formatter

    log = _open(invocation)
    tables = TablePatterns(table) if table else None
    to_json = formatter(format)
    left = limit
    for batch in log.batches(_position(log, start), tables=tables, follow=follow, stop=stop):
        if left == 0 or stop():
            return
        now = datetime.now(UTC)
        lines = [
            json.dumps(to_json(event, log.source, now), ensure_ascii=False, allow_nan=False)
            for event in _first(log.decode(batch), left)
        ]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        if left is not None:
            left -= len(lines)
            if left == 0:
                return


def _first(events: Iterator[Event], count: int | None) -> Iterator[Event]:
    for number, event in enumerate(events):
        if number == count:
            return
        yield event


def _position(log: Log, text: str) -> Position | None:
    from pgtide.position import Position

    if text == "beginning":
        return None
    return log.end if text == "now" else Position.parse(text)


@command.command()
def show(ctx: typer.Context) -> None:
    """Show source, positions, size, tables and shapes.

    JSON: {"source", "position", "complete_from", "first", "last", "version", "events",
    "files", "bytes", "days", "tables": [{"schema", "table", "events"}], "shapes": [{"id",
    "schema", "table", "since", "replica_identity", "columns"}]}.

    \b
    Example:
      pgtide log show --json
    """
    invocation = ctx.ensure_object(Invocation)
    summary = _open(invocation).summary()
    if invocation.json:
        print(json.dumps(summary, ensure_ascii=False))
        return
    _print_summary(summary)


def _print_summary(summary: dict[str, Any]) -> None:
    source = summary["source"]
    print(f"source     {source['database']} (system {source['system_identifier']})")
    print(f"slot       {source['slot']}")
    print(f"position   {summary['position']}")
    print(f"kept       {summary['complete_from'] or 'everything'}", end="")
    print(" and later" if summary["complete_from"] else "")
    print(f"events     {summary['events']}, {summary['first']} to {summary['last']}")
    print(f"size       {summary['bytes'] / 1e6:.1f} MB in {summary['files']} files", end="")
    print(f", {len(summary['days'])} days, version {summary['version']}")
    shapes: dict[tuple[str, str], int] = {}
    for shape in summary["shapes"]:
        described = (shape["schema"], shape["table"])
        shapes[described] = shapes.get(described, 0) + 1
    for table in summary["tables"]:
        known = shapes.get((table["schema"], table["table"]), 0)
        name = f"{table['schema']}.{table['table']}" if table["table"] else "(no table)"
        print(f"{table['events']:>10}  {name}" + (f", {known} shapes" if known > 1 else ""))


@command.command()
def compact(ctx: typer.Context) -> None:
    """Merge small files, apply retention, remove what is no longer needed.

    Capture does this by itself; running both at once is safe. Files that a crash left
    behind are removed by capture alone, a day later.

    \b
    Example:
      pgtide log compact
    """
    from dataclasses import asdict

    from pgtide.log.maintenance import Maintenance

    invocation = ctx.ensure_object(Invocation)
    _open(invocation)  # says best what is wrong with the path
    settings = invocation.config.log
    upkeep = Maintenance(settings.path, settings.storage, settings.retention)
    outcome = upkeep.run_fully()
    if invocation.json:
        print(json.dumps(asdict(outcome)))
        return
    print(f"merged {outcome.files_merged} files, dropped {outcome.files_dropped} old ones")
    print(f"removed {outcome.versions_cleaned} old versions of the Delta log")


@command.command()
def readers(ctx: typer.Context) -> None:
    """List who reads the log: retention and clean-up keep what they still need.

    JSON: [{"name", "position", "version", "updated_at"}].

    \b
    Example:
      pgtide log readers
    """
    invocation = ctx.ensure_object(Invocation)
    known = [
        {
            "name": reader.name,
            "position": str(reader.position),
            "version": reader.version,
            "updated_at": reader.updated_at.isoformat(timespec="milliseconds"),
        }
        for reader in _readers(invocation)
    ]
    if invocation.json:
        print(json.dumps(known))
        return
    for fields in known:
        print(f"{fields['name']}  at {fields['position']}, last heard of {fields['updated_at']}")


@command.command()
def forget(
    ctx: typer.Context,
    reader: Annotated[str, typer.Argument(metavar="READER", help="As pgtide log readers has it.")],
) -> None:
    """Forget a reader that is gone for good: the log keeps nothing for it any longer.

    One that runs after all registers again, or is refused if what it needs is gone.
    JSON: {"forgotten": [name]}.

    \b
    Example:
      pgtide log forget pipeline.lake
    """
    from pgtide.errors import ConfigError
    from pgtide.log.readers import forget_reader
    from pgtide.log.storage import Storage

    invocation = ctx.ensure_object(Invocation)
    known = [known.name for known in _readers(invocation)]
    if reader not in known:
        names = ", ".join(known) or "nobody"
        raise ConfigError(f"there is no reader {reader}", hint=f"The log is read by: {names}.")
    forgotten = [name for name in known if name in (reader, f"{reader}.parked")]
    settings = invocation.config.log
    for name in forgotten:
        forget_reader(Storage(settings.path, settings.storage), name)
    if invocation.json:
        print(json.dumps({"forgotten": forgotten}))
        return
    print(f"forgot {', '.join(forgotten)}")


def _readers(invocation: Invocation) -> list[Reader]:
    from pgtide.log.readers import list_readers
    from pgtide.log.storage import Storage

    _open(invocation)  # says best what is wrong with the path
    settings = invocation.config.log
    return list_readers(Storage(settings.path, settings.storage))


def _open(invocation: Invocation) -> Log:
    settings = invocation.config.log
    from pgtide.log.reader import Log

    return Log(settings.path, settings.storage)
