"""What is asked of a cutover, and what comes of it: checks, position, the SQL that undoes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pgtide.position import Lsn
from pgtide.postgres.verdict import Check
from pgtide.sinks.postgres.sequences import Copied
from pgtide.verify.report import PipelineReport

if TYPE_CHECKING:
    from pgtide.verify.verifying import OnProgress


@dataclass(frozen=True)
class Settings:
    """What is asked for."""

    read_only: bool = False
    verify: bool = True
    wait_s: float = 300.0  # for the target to catch up
    quiet_s: float | None = None  # how long nobody must have written before anything else is done
    on_check: Callable[[Check], None] | None = None  # called as soon as one is known
    on_progress: OnProgress | None = None  # of the verification
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass
class Outcome:
    """The verdict and what it rests on."""

    pipeline: str
    checks: list[Check] = field(default_factory=list)
    position: Lsn | None = None  # the target has everything up to it
    undo: str | None = None  # the SQL that makes the source writable again, if it is not
    sequences: Copied | None = None
    verification: PipelineReport | None = None

    @property
    def ready(self) -> bool:
        return bool(self.checks) and all(check.level != "fail" for check in self.checks)


def document(outcome: Outcome) -> dict[str, Any]:
    """The verdict as JSON."""
    sequences = outcome.sequences
    return {
        "ready": outcome.ready,
        "pipeline": outcome.pipeline,
        "position": None if outcome.position is None else str(outcome.position),
        "undo": outcome.undo,
        "checks": [
            {"name": c.name, "level": c.level, "message": c.message, "hint": c.hint}
            for c in outcome.checks
        ],
        "sequences": None if sequences is None else vars(sequences),
        "verification": outcome.verification and outcome.verification.document(),
    }
