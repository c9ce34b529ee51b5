"""Sinks: where a pipeline's changes go. One module per sink, made by ``open_sink``.

A sink gets one batch after the other, in order, and the same batch again after a crash:
``Mark`` tells it which one, so that it can tell what it has already done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pgtide.pipeline.batch import Batch
    from pgtide.pipeline.parallel import Failure
    from pgtide.position import Position
    from pgtide.rules import TableRules

RESUME = "resume"  # how phases begin in which parked tables catch up


@dataclass(frozen=True)
class Mark:
    """Which batch this is: equal for the same batch, whenever it is delivered."""

    pipeline: str
    incarnation: str  # another for each checkpoint: numbers begin anew with it
    phase: str  # numbers of the history and of the stream are counted apart
    number: int

    @property
    def catches_up(self) -> bool:
        """Whether it is for tables that were parked: they have their own way to the present."""
        return self.phase.startswith(RESUME)

    def app_id(self, step: int) -> str:
        """The Delta application id of one write of this batch into one table."""
        return f"pgtide/{self.pipeline}/{self.incarnation}/{self.phase}/{step}"


class Sink(Protocol):
    """Delivers batches to one target."""

    whole_transactions: bool
    """Whether a transaction is held back until all of it has come."""

    def write(self, batch: Batch) -> list[Failure]:
        """Deliver a batch; the tables that failed. What was delivered before is not repeated."""

    def reached(self, mark: Mark, table: TableRules | None = None) -> Position | None:
        """How far batches with such a mark are in the target, by what it says itself.

        Of a table: the very first position if the target does not have it. None where only
        each row or file tells what is there: then anything may be delivered again.
        """

    def close(self) -> None:
        """Let go of connections and threads."""
