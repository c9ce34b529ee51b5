"""The facts behind ``pgtide status``: from the server, from the log, from capture's own file.

Each part stands alone. A server that is down hides the slot, not the log; a log that is not
there yet hides nothing of the server.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg

from pgtide.capture.progress import ENDED, FILE, LOCAL_INTERVAL_S, OBJECT_STORE_INTERVAL_S
from pgtide.cli.pipeline_facts import pipeline_documents
from pgtide.cli.refresh import facts
from pgtide.cli.rendering import error_document
from pgtide.config import Config
from pgtide.errors import PgtideError
from pgtide.log.own_files import understood
from pgtide.log.reader import Log
from pgtide.log.refreshes import ENDED as ENDED_REFRESH
from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from pgtide.position import Lsn
from pgtide.postgres.connection import connect, translate
from pgtide.postgres.slot import SlotState, capture_pids, read_slot, reading_pid

SAMPLE_SECONDS = 1.0  # between the two looks that rates are taken from
_OVERDUE = 5  # intervals without a word after which a capture is silent
_SAID = ("pid", "gear", "events", "events_per_second", "started_at", "updated_at", "last_error")

_SERVER = """
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_lsn() END::text, clock_timestamp()
"""


@dataclass(frozen=True, slots=True)
class _Source:
    """What the server said; only ``facts``, with the error, when it could not be asked."""

    facts: dict[str, Any]
    slot: dict[str, Any] | None = None
    lsn: Lsn | None = None
    at: datetime | None = None  # its clock
    captured: bool | None = None  # whether a capture is attached to the slot


def gather(config: Config) -> dict[str, Any]:
    """Everything, as the documented JSON."""
    source = _source(config)
    log = _log(config, source.lsn, source.at)
    capture = _capture(config, source.captured)
    slot = source.slot
    pipelines = pipeline_documents(config, source.at) if "error" not in log else []
    refreshes = _refreshes(config) if "error" not in log else []
    ok = (
        "error" not in source.facts
        and "error" not in log
        and slot is not None
        and slot["exists"]
        and slot["wal_status"] != "lost"
        and (capture is None or capture["running"] or capture["gear"] == "stopped")
        and not any(map(_is_down, pipelines))
        and not any(refresh["state"] == "failed" for refresh in refreshes)
    )
    return {
        "ok": ok,
        "source": source.facts,
        "slot": slot,
        "log": log,
        "capture": capture,
        "pipelines": pipelines,
        "refreshes": refreshes,
    }


def _refreshes(config: Config) -> list[dict[str, Any]]:
    """Those that are under way, and those that failed and nobody has given up."""
    store = RefreshStore(Storage(config.log.path, config.log.storage))
    found = [facts(store, request) for request in store.requests()]
    return [
        each
        for each in found
        if each["state"] not in ENDED_REFRESH
        or (each["state"] == "failed" and store.control(each["id"]) != "cancel")
    ]


def _is_down(pipeline: dict[str, Any]) -> bool:
    verified = pipeline["verified"]
    differing = verified["differing"] if verified is not None else []
    troubles = (pipeline["error"], pipeline["last_error"], pipeline["parked"], differing)
    return pipeline["configured"] and any(troubles)


def _source(config: Config) -> _Source:
    try:
        with connect(config.source.url.reveal(), application_name="pgtide status") as conn:
            before = Lsn.parse(_one(conn.execute(_SERVER).fetchone())[0])
            began = time.monotonic()
            time.sleep(SAMPLE_SECONDS)
            text, at = _one(conn.execute(_SERVER).fetchone())
            now = Lsn.parse(text)
            rate = (now - before) / (time.monotonic() - began)
            slot = read_slot(conn, config.source.slot)
            reader = reading_pid(conn, config.source.slot)
            captured = bool(capture_pids(conn, config.source.slot))
    except psycopg.Error as exc:
        return _Source({"error": error_document(translate(exc))})
    except PgtideError as exc:
        return _Source({"error": error_document(exc)})
    facts = {"server_lsn": text, "wal_bytes_per_second": round(rate, 1)}
    return _Source(facts, _slot(slot, reader, rate), now, at, captured)


def _one(row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    if row is None:
        raise AssertionError("a SELECT without FROM returns one row")
    return row


def _slot(slot: SlotState, reader: int | None, rate: float) -> dict[str, Any]:
    # The server counts safe_wal_size down as WAL is written while the slot stands still.
    left = None
    if slot.safe_wal_size is not None and rate > 0:
        left = round(max(0, slot.safe_wal_size) / rate, 1)
    return {
        "name": slot.name,
        "exists": slot.exists,
        "active": reader is not None,
        "active_pid": reader,
        "copied": reader is not None and slot.active_pid is None,
        "wal_status": "lost" if slot.invalid else slot.wal_status,
        "retained_bytes": slot.retained_bytes,
        "safe_wal_size": slot.safe_wal_size,
        "seconds_to_invalidation": left,
        "confirmed": _text(slot.confirmed_flush_lsn),
        "restart": _text(slot.restart_lsn),
    }


def _log(config: Config, server: Lsn | None, at: datetime | None) -> dict[str, Any]:
    try:
        log = Log(config.log.path, config.log.storage)
        position = log.position
        lag = None if server is None else max(0, server - position)
        behind = 0.0 if lag == 0 else _seconds_behind(log, at)
    except PgtideError as exc:
        return {"error": error_document(exc)}
    return {"position": str(position), "lag_bytes": lag, "lag_seconds": behind}


def _seconds_behind(log: Log, at: datetime | None) -> float | None:
    """Age of what the log knows, by the server's clock; None when it cannot be told."""
    known = log.known_until()
    if known is None or at is None:
        return None
    return round(max(0.0, (at - known).total_seconds()), 3)


def _capture(config: Config, attached: bool | None) -> dict[str, Any] | None:
    """What capture last said of itself; whether it runs is what the server sees.

    A process that was killed says nothing, and its last word stays. Only when the
    server cannot be asked does it count as running for as long as that word is fresh.
    """
    storage = Storage(config.log.path, config.log.storage)
    try:
        content = storage.read(FILE)
    except PgtideError:
        return None  # the log's own line says what is wrong
    if content is None:
        return None
    hint = "Delete it: capture writes it anew."
    with understood("what capture last said of itself", f"{FILE} in the log", hint=hint):
        fields = _said(content)
    interval = LOCAL_INTERVAL_S if storage.local is not None else OBJECT_STORE_INTERVAL_S
    silent = datetime.now(UTC) - datetime.fromisoformat(fields["updated_at"])
    fresh = silent.total_seconds() < _OVERDUE * interval
    running = attached if attached is not None else fresh and fields["gear"] not in ENDED
    return {"running": running, **fields}


def _said(content: bytes) -> dict[str, Any]:
    fields = json.loads(content)
    datetime.fromisoformat(fields["updated_at"])
    return {name: fields[name] for name in _SAID}


def _text(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)
