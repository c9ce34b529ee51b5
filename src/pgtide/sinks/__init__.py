"""Sinks: where a pipeline's changes go. One module per sink, made by ``open_sink``.

A sink gets one batch after the other, in order. After a crash rows come again, in the same
batches or, without the pipeline's state, in others: the target itself tells what it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pgtide.pipeline.batch import Batch
    from pgtide.pipeline.parallel import Failure
    from pgtide.position import Position
    from pgtide.rules import TableRules


@dataclass(frozen=True)
class Scope:
    """Whose progress a batch is: the pipeline's, or of tables that were parked and catch up."""

    pipeline: str
    resumption: str | None = None  # which one: no two of a pipeline have the same, ever

    @property
    def name(self) -> str:
        return self.pipeline if self.resumption is None else f"{self.pipeline}/{self.resumption}"


class Sink(Protocol):
    """Delivers batches to one target."""

    whole_transactions: bool
    """Whether a transaction is held back until all of it has come."""

    def write(self, batch: Batch) -> list[Failure]:
        """Deliver a batch; the tables that failed. What was delivered before is not repeated."""

    def reached(self, scope: Scope, table: TableRules | None = None) -> Position | None:
        """How far such batches are in the target, by what it says itself.

        Of a table: the very first position if the target does not have it. None where only
        each row or file tells what is there: then anything may be delivered again.
        """

    def close(self) -> None:
        """Let go of connections and threads."""
