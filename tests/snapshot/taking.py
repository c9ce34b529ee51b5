"""Taking snapshots in tests, and comparing a log with its source."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.snapshot.initial import InitialSnapshot
from pgtide.snapshot.progress import SnapshotProgress
from pgtide.snapshot.request import Request
from tests.fixtures.capture import Captured


def take(
    captured: Captured,
    spark: SparkSession,
    *tables: str,
    where: dict[str, str] | None = None,
    on_progress: Any = None,
    **history: Any,
) -> SnapshotProgress:
    """Take a snapshot in this process."""
    settings = {**captured.settings, "history": history}
    snapshot = InitialSnapshot(
        Config.model_validate(settings), spark, Request(tables, where), on_progress=on_progress
    )
    assert snapshot.take()
    return snapshot.progress


def reads(captured: Captured, table: str) -> list[list[str | None]]:
    """The rows that were read of a table, sorted."""
    rows = [row for row in captured.rows() if row["op"] == "read" and row["table"] == table]
    return sorted((row["after"] for row in rows), key=repr)


def source(captured: Captured, query: str) -> list[list[str | None]]:
    """The rows of a query of texts, sorted."""
    return sorted((list(row) for row in captured.execute(query)), key=repr)


def final_message(captured: Captured) -> dict[str, Any]:
    """What the snapshot says at its end."""
    (row,) = [
        row
        for row in captured.rows()
        if row["op"] == "message" and '"pgtide.snapshot"' in row["payload"]
    ]
    assert row["last"]
    content: dict[str, Any] = json.loads(json.loads(row["payload"])["content"])
    return content


def state(captured: Captured, table: str) -> dict[str, list[str | None]]:
    """What a table's rows are after all events of the log, by the text of the first column."""
    held: dict[str, list[str | None]] = {}
    for row in captured.rows():
        if row["table"] != table or row["op"] not in ("read", "insert", "update", "delete"):
            continue
        before, after = row["before"], row["after"]
        key = (before or after)[0]
        old = held.pop(key, None)
        if after is not None:
            unsent = row["unchanged"] or []
            held[after[0]] = [
                (old[index] if old is not None else "not sent") if index in unsent else value
                for index, value in enumerate(after)
            ]
    return held
