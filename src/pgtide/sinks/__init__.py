"""Sinks: where a pipeline's changes go. One module per sink, made by ``open_sink``.

A sink gets one batch after the other, in order. After a crash rows come again, in the same
batches or, without the pipeline's state, in others: the target itself tells what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pgtide.pipeline.batch import Batch
    from pgtide.pipeline.parallel import Failure
    from pgtide.pipeline.state import Parked
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


@dataclass(frozen=True)
class Kept:
    """What the state of a pipeline says of its tables, as its target knows it too."""

    tables: list[str] | None  # patterns of what is delivered; None: nobody has said so yet
    parked: Mapping[str, Parked]
    left: Mapping[str, Position]  # where tables have to go on that are not selected any more


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

    def kept(self, pipeline: str) -> Kept | None:
        """What the target knows of a pipeline's tables besides; None where rows tell it all."""

    def keep(self, pipeline: str, kept: Kept) -> None:
        """Have the target know this, for a state that gets lost; before anything hinges on it."""

    def leave(self, pipeline: str, table: TableRules, position: Position) -> None:
        """Note that a table is not selected any more; it has everything before a position."""

    def close(self) -> None:
        """Let go of connections and threads."""
