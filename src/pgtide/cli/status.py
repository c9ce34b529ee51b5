"""``pgtide status``: the slot, the log, the capture between them, and the pipelines."""

from __future__ import annotations

import json
from typing import Any

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.marks import print_line
from pgtide.cli.quantities import duration, size
from pgtide.cli.refresh import print_refresh
from pgtide.standard_output import stdout_may_close


def command(ctx: typer.Context) -> int:
    """Show slot, log, pipelines and how far each is behind.

    Exits with 3 when the source cannot be reached; with 1 when there is no log, the slot is
    missing or lost, capture failed, tries again or ended without saying so, or a pipeline
    failed, has parked tables or a state that cannot be read, or a refresh failed (until it is
    cancelled). Whether capture runs is what the
    server sees. Rates are measured for one second. JSON: {"ok", "source": {"error"} or
    {"server_lsn", "wal_bytes_per_second"}, "slot": {"name", "exists", "active", "active_pid",
    "copied", "wal_status", "retained_bytes", "safe_wal_size", "seconds_to_invalidation",
    "confirmed", "restart"} or null, "log": {"position", "lag_bytes", "lag_seconds"} or
    {"error"}, "capture": {"running", "pid", "gear", "events", "events_per_second",
    "started_at", "updated_at", "last_error"} or null, "pipelines": [{"name", "configured",
    "running", "position", "rows", "batches", "withheld": {TABLE: events}, "skipped_writes":
    {TABLE: writes}, "last_batch": {"at", "rows", "seconds"} or null, "parked": [{"table",
    "position", "since", "message", "detail", "hint"}], "lag_bytes", "lag_seconds",
    "verified": {"started_at", "finished_at", "tables", "rows", "differing": [{"table", "missing",
    "extra", "different", "note", "keys": [[text]]}], "refused": {TABLE: why},
    "error": {"message", "detail", "hint"} or null} or null, "last_error", "error", "target":
    {"conflicts": {TABLE: rows}, "left_out": {REASON: statements}} or {"error"} or null}],
    "refreshes": those under way or failed, as pgtide refresh --list shows them}. An
    error is {"type", "message", "detail", "hint", "exit_code"};
    a pipeline's is null unless what it keeps in the log cannot be read: what is not known then
    is null or empty. "verified": what the background verification found. "copied": a backlog is
    read through a temporary copy of the slot. "withheld": what filters and routes have left
    out, and updates of rows that a refresh has yet to bring. "skipped_writes": what came a second
    time, after a crash or a lost checkpoint, and was in the Delta table already. "target": of a
    Postgres target, the conflicts that were resolved and DDL that was not replayed. A
    pipeline's lag is that to the log.

    \b
    Example:
      pgtide status --json
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    from pgtide.cli.status_facts import gather

    status = gather(config)
    with stdout_may_close():
        if invocation.json:
            print(json.dumps(status, ensure_ascii=False))
        else:
            _print_source(status)
            _print_slot(status["slot"], status["capture"])
            _print_log(status["log"])
            _print_capture(status["capture"])
            for pipeline in status["pipelines"]:
                _print_pipeline(pipeline)
            for refresh in status["refreshes"]:
                print_refresh(refresh)
    if error := status["source"].get("error"):
        return int(error["exit_code"])
    return 0 if status["ok"] else 1


def _print_source(status: dict[str, Any]) -> None:
    source = status["source"]
    if error := source.get("error"):
        print_line("fail", f"source: {error['message']}", error["hint"])
        return
    rate = size(source["wal_bytes_per_second"])
    print_line("ok", f"source: at {source['server_lsn']}, writes {rate}/s of WAL")


def _print_slot(slot: dict[str, Any] | None, capture: dict[str, Any] | None) -> None:
    if slot is None:
        return
    if not slot["exists"]:
        print_line("fail", f"slot {slot['name']}: does not exist", "Run: pgtide init")
        return
    if slot["wal_status"] == "lost":
        hint = "Changes are missing from the log. Run: pgtide destroy, pgtide init"
        print_line("fail", f"slot {slot['name']}: lost, the server removed its WAL", hint)
        return
    text = f"slot {slot['name']}: {_use(slot)}, {slot['wal_status']}"
    text += f", retains {size(slot['retained_bytes'] or 0)} of WAL"
    if slot["safe_wal_size"] is not None:
        text += f", {size(slot['safe_wal_size'])} left until the server drops it"
    left = slot["seconds_to_invalidation"]
    if left is not None:
        text += f", in {duration(left)} at the present rate"
    endangered = slot["wal_status"] == "unreserved" or (left is not None and left < 3600)
    # Between two sessions, or before its first, a capture is attached and reads nothing.
    idle = not slot["active"] and not (capture and capture["running"])
    print_line("warn" if endangered or idle else "ok", text)


def _use(slot: dict[str, Any]) -> str:
    if not slot["active"]:
        return "not active"
    how = "read through a temporary copy" if slot["copied"] else "active"
    return f"{how} (server process {slot['active_pid']})"


def _print_log(log: dict[str, Any]) -> None:
    if error := log.get("error"):
        print_line("fail", f"log: {error['message']}", error["hint"])
        return
    text = f"log: at {log['position']}"
    if log["lag_bytes"] is not None:
        text += f", {size(log['lag_bytes'])} behind"
    if log["lag_seconds"] is not None:
        text += f", {duration(log['lag_seconds'])}"
    print_line("ok", text)


def _print_capture(capture: dict[str, Any] | None) -> None:
    if capture is None:
        print_line("warn", "capture: never ran on this log", "Run: pgtide capture")
        return
    if capture["running"]:
        rate = f"{capture['events_per_second']:.0f} events/s"
        text = f"capture: {capture['gear']}, {rate}, {capture['events']} since it started"
        print_line("ok", text)
    elif capture["gear"] == "waiting":
        print_line("warn", f"capture: waiting to try again at {capture['updated_at']}")
    elif capture["gear"] in ("stopped", "failed"):
        text = f"capture: {capture['gear']} at {capture['updated_at']}"
        print_line("warn", text, "Run: pgtide capture")
    else:
        text = f"capture: gone, last heard of at {capture['updated_at']}"
        print_line("fail", text, "Run: pgtide capture")
    if error := capture["last_error"]:
        print_line("warn", f"last error at {error['at']}: {error['message']}", error["hint"])


def _print_pipeline(pipeline: dict[str, Any]) -> None:
    name = pipeline["name"]
    broken = pipeline["error"]
    unknown = broken is not None and pipeline["position"] is None
    if not pipeline["configured"]:
        where = "and its state cannot be read" if unknown else f"at {pipeline['position']}"
        text = f"pipeline {name}: no longer in the configuration, {where}"
        hint = f"The log keeps what it needs. If it is gone: pgtide log forget pipeline.{name}"
        print_line("warn", text, hint)
    elif pipeline["position"] is None and not unknown:
        print_line("warn", f"pipeline {name}: never ran", "Run: pgtide run")
    elif not unknown:
        print_line("ok" if pipeline["running"] in (True, None) else "warn", _progress(pipeline))
    if broken and pipeline["configured"]:
        hint = "\n".join(filter(None, [broken["detail"], broken["hint"]]))
        print_line("fail", f"pipeline {name}: {broken['message']}", hint)
    for table in pipeline["parked"]:
        retry = f"Then run: pgtide resume --pipeline {name} --table {table['table']}"
        text = f"pipeline {name} parked {table['table']} at {table['position']}: {table['message']}"
        print_line("fail", text, "\n".join(filter(None, [table["detail"], table["hint"], retry])))
    _print_target(name, pipeline["target"])
    if verified := pipeline["verified"]:
        _print_verified(name, verified)
    if error := pipeline["last_error"]:
        kind = "warn" if error["transient"] else "fail"
        text = f"pipeline {name} failed at {error['at']}: {error['message']}"
        print_line(kind, text, "\n".join(filter(None, [error["detail"], error["hint"]])))


def _print_target(name: str, target: dict[str, Any] | None) -> None:
    """Only what is worth a look: the pipeline's own line says the rest."""
    if target is None:
        return
    if error := target.get("error"):
        hint = "\n".join(filter(None, [error["detail"], error["hint"]]))
        print_line("warn", f"pipeline {name}: {error['message']}", hint)
        return
    for table, rows in target["conflicts"].items():
        hint = f"Rows of it were not as the source's changes said: pgtide verify --pipeline {name}"
        text = f"pipeline {name}: {rows} conflicts in {table}, listed in pgtide.conflicts"
        print_line("warn", text, hint)
    if target["left_out"]:
        counts = ", ".join(f"{count} ({reason})" for reason, count in target["left_out"].items())
        print_line("ok", f"pipeline {name}: DDL left out: {counts}")


def _print_verified(name: str, verified: dict[str, Any]) -> None:
    at = verified["finished_at"]
    if error := verified["error"]:
        text = f"pipeline {name}: verification failed at {at}: {error['message']}"
        print_line("warn", text, "\n".join(filter(None, [error["detail"], error["hint"]])))
    for table in verified["differing"]:
        kinds = [kind for kind in ("missing", "extra", "different") if table[kind]]
        facts = [table.get("note"), *(f"{table[kind]} {kind}" for kind in kinds)]
        counts = ", ".join(filter(None, facts))
        hint = f"Run: pgtide verify --pipeline {name} --table {table['table']} --repair"
        text = f"pipeline {name}: {table['table']} differs from the source, {counts}, at {at}"
        print_line("fail", text, hint)
    if not verified["error"] and not verified["differing"]:
        found = f"{verified['tables']} tables equal to the source, {verified['rows']} rows"
        refused = f", {len(verified['refused'])} not verified" if verified["refused"] else ""
        print_line("ok", f"pipeline {name}: {found}{refused}, at {at}")


def _progress(pipeline: dict[str, Any]) -> str:
    state = {True: "running", False: "not running", None: "running or not"}[pipeline["running"]]
    text = f"pipeline {pipeline['name']}: {state}, at {pipeline['position']}"
    if not pipeline["lag_bytes"]:
        text += ", has all of the log"
    else:
        text += f", {size(pipeline['lag_bytes'])} behind the log"
        if pipeline["lag_seconds"] is not None:
            text += f", {duration(pipeline['lag_seconds'])}"
    if batch := pipeline["last_batch"]:
        text += f"; last batch {batch['at']}, {batch['rows']} rows in {batch['seconds']:.1f} s"
    if withheld := sum(pipeline["withheld"].values()):
        text += f"; {withheld} events left out"
    if skipped := sum(pipeline["skipped_writes"].values()):
        text += f"; repeated writes: {skipped}, skipped"
    return text
