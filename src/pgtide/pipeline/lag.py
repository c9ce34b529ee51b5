"""How far a pipeline is behind the log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pgtide.log.snapshot import Snapshot
from pgtide.pipeline.state import State


@dataclass(frozen=True, slots=True)
class Lag:
    """Distance to the end of the log; nothing when all that it holds was delivered."""

    bytes: int = 0  # of the source's WAL
    seconds: float | None = 0.0  # age of the newest change that was delivered; None before any


def lag_of(state: State, snapshot: Snapshot, at: datetime) -> Lag:
    """What a pipeline has yet to deliver, at a moment of the source's clock."""
    if state.position >= snapshot.end:
        return Lag()
    behind = max(0, snapshot.position - max(state.position.lsn, snapshot.complete_from))
    if state.committed_at is None:
        return Lag(behind, None)
    return Lag(behind, round(max(0.0, (at - state.committed_at).total_seconds()), 3))
