"""Pipelines as JSON: what ``pgtide status`` and ``pgtide run --json`` say of one."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import psycopg

from pgtide.cli.rendering import error_document
from pgtide.config import Config
from pgtide.config.sinks import PostgresSettings
from pgtide.errors import PgtideError
from pgtide.log.reader import Log
from pgtide.log.snapshot import Snapshot
from pgtide.log.storage import Storage
from pgtide.pipeline.lag import lag_of
from pgtide.pipeline.lease import holder_of
from pgtide.pipeline.state import State
from pgtide.pipeline.state_file import StateFile, pipeline_names
from pgtide.sinks.postgres.failures import target_error
from pgtide.sinks.postgres.reaching import connect_target
from pgtide.sinks.postgres.tallies import read_tallies
from pgtide.verify.results import VerifyFile


def state_document(state: State | None) -> dict[str, Any]:
    """How far a pipeline has come; all that it did is nothing before it first ran."""
    if state is None:
        nothing: dict[str, Any] = {"position": None, "rows": 0, "batches": 0, "withheld": {}}
        return {**nothing, "skipped_writes": {}, "last_batch": None, "parked": []}
    batch = None
    if state.batch_at is not None:
        batch = {
            "at": state.batch_at.isoformat(timespec="milliseconds"),
            "rows": state.batch_rows,
            "seconds": round(state.batch_seconds, 3),
        }
    parked = [
        {
            "table": name,
            "position": str(table.position),
            "since": table.since.isoformat(timespec="milliseconds"),
            "message": table.message,
            "detail": table.detail,
            "hint": table.hint,
        }
        for name, table in sorted(state.parked.items())
    ]
    return {
        "position": str(state.position),
        "rows": state.rows,
        "batches": state.batches,
        "withheld": state.withheld,
        "skipped_writes": state.skipped_writes,
        "last_batch": batch,
        "parked": parked,
    }


def pipeline_documents(config: Config, at: datetime | None) -> list[dict[str, Any]]:
    """Every pipeline that is configured or has ever run on the log, at the source's time."""
    storage = Storage(config.log.path, config.log.storage)
    snapshot = Log(config.log.path, config.log.storage).snapshot()
    names = [*config.pipelines]
    names += [name for name in pipeline_names(storage) if name not in config.pipelines]
    moment = at or datetime.now(UTC)
    return [
        {
            "name": name,
            "configured": name in config.pipelines,
            **_document(storage, snapshot, name, moment),
            "target": _target(config, name),
        }
        for name in names
    ]


def _document(storage: Storage, snapshot: Snapshot, name: str, at: datetime) -> dict[str, Any]:
    """What is broken hides itself only: neither the rest of the pipeline nor other ones."""
    file = StateFile(storage, name)
    state, last_error, broken = None, None, None
    try:
        last_error = file.error()
    except PgtideError as exc:
        broken = error_document(exc)
    try:
        state = file.load()
        progress = state_document(state)
    except PgtideError as exc:
        broken = error_document(exc)
        progress = {**state_document(None), "rows": None, "batches": None}
    verified = None
    try:
        verified = VerifyFile(storage, name).load()
    except PgtideError as exc:
        broken = broken or error_document(exc)
    lag = lag_of(state, snapshot, at) if state is not None else None
    return {
        "running": holder_of(storage, name) is not None if storage.local is not None else None,
        **progress,
        "lag_bytes": lag.bytes if lag is not None else None,
        "lag_seconds": lag.seconds if lag is not None else None,
        "verified": verified,
        "last_error": last_error,
        "error": broken,
    }


def _target(config: Config, name: str) -> dict[str, Any] | None:
    """What a Postgres target has settled in its own way; None for other sinks."""
    pipeline = config.pipelines.get(name)
    if pipeline is None or not isinstance(pipeline.sink, PostgresSettings):
        return None
    try:
        with closing(connect_target(config, name, application_name="pgtide status")) as connection:
            found = read_tallies(connection, name)
    except psycopg.Error as exc:
        return {"error": error_document(target_error(exc, "it is asked for its conflicts"))}
    except PgtideError as exc:
        return {"error": error_document(exc)}
    return {"conflicts": found.conflicts, "left_out": found.left_out}
