"""How far a pipeline is behind the log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pgtide.log.snapshot import DataFile, Snapshot
from pgtide.pipeline.state import State
from pgtide.position import Position


@dataclass(frozen=True, slots=True)
class Lag:
    """Distance to the end of the log; nothing when all that it holds was delivered."""

    bytes: int = 0  # of the source's WAL
    seconds: float | None = 0.0  # age of the newest change that was delivered; None before any


def lag_of(state: State, snapshot: Snapshot, at: datetime) -> Lag:
    """What a pipeline has yet to deliver, at a moment of the source's clock."""
    if not any(is_ahead(file, state.position) for file in snapshot.files):
        return Lag()
    behind = max(0, snapshot.position - max(state.position.lsn, snapshot.complete_from))
    if state.committed_at is None:
        return Lag(behind, None)
    return Lag(behind, round(max(0.0, (at - state.committed_at).total_seconds()), 3))


def is_ahead(file: DataFile, position: Position) -> bool:
    """Whether a file holds rows from a position on.

    Its bounds say so for whole transactions, and for files that are part of one.
    """
    if file.high.lsn != position.lsn:
        return file.high.lsn > position.lsn
    return file.low.lsn == position.lsn and file.low.seq >= position.seq
