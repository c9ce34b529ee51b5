"""The Postgres sink in mode history: every change a row, in tables that pgtide makes.

Which rows of a batch the target lacks, and how it says so, is as for a mirror.
"""

from __future__ import annotations

from pgtide.pipeline.batch import Batch
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.history_transaction import HistoryTransaction
from pgtide.sinks.postgres.sink import PostgresSink


class HistorySink(PostgresSink):
    """Appends batches to histories in another database."""

    def _apply(self, wanted: Batch, connection: SqlConnection, scope: str) -> None:
        self._from = wanted.census.low
        transaction = HistoryTransaction(connection, self._settings.url.reveal(), wanted, scope)
        self._reached[scope] = transaction.run(self._reached[scope])

    def _refuse_mode(self, connection: SqlConnection, batch: Batch) -> None:
        """A mirror's tables are not of pgtide's making, and are refused one by one."""
