"""``pgtide refresh``: have rows read again while everything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.marks import print_line
from pgtide.errors import ConfigError

if TYPE_CHECKING:
    from pgtide.config import Config
    from pgtide.log.refreshes import Refresh, RefreshStore


def command(
    ctx: typer.Context,
    table: Annotated[
        str | None, typer.Argument(metavar="SCHEMA.TABLE", help="The table, without quotes.")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Rows that fulfil a condition.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys",
            metavar="FILE",
            help="Rows of these keys: one per line, columns of a key separated by tabs.",
        ),
    ] = None,
    range_: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar="A..B",
            help="Rows whose first key column is from A to B; either may be left out.",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete rows that only targets have.")
    ] = False,
    chunk_rows: Annotated[
        int | None, typer.Option("--chunk-rows", metavar="N", min=1, help="Rows per chunk.")
    ] = None,
    max_rate: Annotated[
        int | None,
        typer.Option("--max-rate", metavar="R", min=0, help="Rows a second; 0: no limit."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")] = True,
    list_: Annotated[bool, typer.Option("--list", help="Show refreshes.")] = False,
    pause: Annotated[str | None, typer.Option("--pause", metavar="ID", help="Pause one.")] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="ID", help="Go on with one.")
    ] = None,
    cancel: Annotated[
        str | None, typer.Option("--cancel", metavar="ID", help="Give one up.")
    ] = None,
) -> None:
    """Read rows of a table again while everything runs.

    The running capture reads them in chunks and puts them into the log, each row in its place
    among the changes: no lock, no pause, and nothing goes back in time. Without a running
    capture the next one does it. A request survives a crash of anything. JSON: {"id", "table",
    "state": "queued" | "running" | "waiting" | "paused" | "done" | "cancelled" | "failed",
    "rows", "dropped", "chunks", "total", "since", "until", "message", "reason",
    "requested_at"}; with --list a list of them. "dropped": rows that a newer change has
    overtaken. "until": a target that is there has all of it.

    \b
    Examples:
      pgtide refresh public.orders
      pgtide refresh public.orders --where "status = 'open'" --max-rate 10000
      pgtide refresh public.orders --range 1000..2000 --replace
      pgtide refresh --list
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    from pgtide.snapshot.asking import store_of

    wanted = {"pause": pause, "run": resume, "cancel": cancel}
    steered = [(what, id) for what, id in wanted.items() if id is not None]
    if (table is not None) + list_ + len(steered) != 1:
        raise ConfigError("say one of a table, --list, --pause, --resume and --cancel")
    store = store_of(config)
    for what, id in steered:
        store.steer(id, what)  # type: ignore[arg-type]
        _tell(invocation, store, store.get(id), {"run": "goes on"}.get(what, f"is to {what}"))
    if list_:
        _list(invocation, store)
    if table is not None:
        from pgtide.log.refreshes import Refresh

        low, high = _range(range_)
        request = Refresh(
            table,
            where=where,
            keys=None if keys is None else _keys(keys),
            low=low,
            high=high,
            replace=replace,
            chunk_rows=chunk_rows,
            max_rate=max_rate,
        )
        _request(invocation, store, request, wait=wait)


def _request(invocation: Invocation, store: RefreshStore, request: Refresh, *, wait: bool) -> None:
    from pgtide.snapshot.asking import ask, wait_for

    config = invocation.config
    ask(config, request)
    captured = wait and _captured(config)
    if captured:
        from pgtide.cli.refresh_progress import RefreshReporter

        with RefreshReporter(request.table, quiet=invocation.json) as reporter:
            wait_for(config, request.id, on_progress=reporter)
    if captured:
        standing = store.standing(request.id)
        said = f"is done: {standing.rows} rows, in the log at {standing.until}"
    else:
        said = "is queued" if not wait else "is queued: the next capture does it, pgtide run"
    _tell(invocation, store, request, said)


def _tell(invocation: Invocation, store: RefreshStore, request: Refresh, said: str) -> None:
    if invocation.json:
        print(json.dumps(facts(store, request)))
    else:
        print_line("ok", f"refresh {request.id} of {request.table} {said}")


def _list(invocation: Invocation, store: RefreshStore) -> None:
    found = [facts(store, request) for request in store.requests()]
    if invocation.json:
        print(json.dumps(found))
    elif not found:
        print_line("ok", "no refresh was asked for")
    else:
        for each in found:
            print_refresh(each)


def print_refresh(refresh: dict[str, Any]) -> None:
    """A line about one refresh."""
    state = refresh["state"]
    kind = {"failed": "fail", "waiting": "warn", "paused": "warn"}.get(state, "ok")
    total = f" of about {refresh['total']}" if refresh["total"] else ""
    text = f"refresh {refresh['id']} of {refresh['table']}: {state}, {refresh['rows']}{total} rows"
    print_line(kind, text, refresh["message"])


def facts(store: RefreshStore, request: Refresh) -> dict[str, Any]:
    """What is known of a refresh, for JSON."""
    standing = store.standing(request.id)
    return {
        "id": request.id,
        "table": request.table,
        "state": standing.state,
        "rows": standing.rows,
        "dropped": standing.dropped,
        "chunks": standing.chunks,
        "total": standing.total,
        "since": None if standing.since is None else str(standing.since),
        "until": None if standing.until is None else str(standing.until),
        "message": standing.message,
        "reason": request.reason,
        "requested_at": request.requested_at.isoformat(),
    }


def _captured(config: Config) -> bool:
    """Whether a capture is attached to the slot."""
    from pgtide.postgres.connection import connect
    from pgtide.postgres.slot import capture_pids

    with connect(config.source.url.reveal(), application_name="pgtide refresh") as conn:
        return bool(capture_pids(conn, config.source.slot))


def _range(text: str | None) -> tuple[str | None, str | None]:
    if text is None:
        return None, None
    low, dots, high = text.partition("..")
    if not dots or not (low or high):
        raise ConfigError(f"{text!r} is not a range", hint="Write A..B, A.. or ..B")
    return low or None, high or None


def _keys(path: Path) -> tuple[tuple[str, ...], ...]:
    try:
        # Other characters that end lines may be part of keys, and editors put a mark in front.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read", detail=f"{exc}.") from None
    texts = (line.removesuffix("\r") for line in lines)
    keys = tuple(tuple(text.split("\t")) for text in texts if text)
    if not keys:
        raise ConfigError(
            f"{path} has no keys", hint="One key per line, columns separated by tabs."
        )
    return keys
