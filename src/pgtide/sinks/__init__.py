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


@dataclass(frozen=True)
class Mark:
    """Which batch this is: equal for the same batch, whenever it is delivered."""

    pipeline: str
    incarnation: str  # another for each checkpoint: numbers begin anew with it
    phase: str  # numbers of the history and of the stream are counted apart
    number: int

    def app_id(self, step: int) -> str:
        """The Delta application id of one write of this batch into one table."""
        return f"pgtide/{self.pipeline}/{self.incarnation}/{self.phase}/{step}"


class Sink(Protocol):
    """Delivers batches to one target."""

    whole_transactions: bool
    """Whether a transaction is held back until all of it has come."""

    def write(self, batch: Batch) -> list[Failure]:
        """Deliver a batch; the tables that failed. What was delivered before is not repeated."""

    def close(self) -> None:
        """Let go of connections and threads."""
