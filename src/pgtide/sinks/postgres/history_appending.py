"""Appending staged events to a history, and the one that the target refuses, by its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import psycopg

from pgtide.pipeline.steps import Rows
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.failures import TableRefused, is_of_a_row, row_refused
from pgtide.sinks.postgres.history_rows import HistoryLayout
from pgtide.sinks.postgres.history_tables import HistoryTable


@dataclass(frozen=True)
class Appending:
    """The events of one step on their way from the stage into their table."""

    connection: SqlConnection
    history: HistoryLayout
    table: HistoryTable
    loads: Sequence[int]
    low: Position
    high: Position

    @classmethod
    def of(
        cls,
        connection: SqlConnection,
        history: HistoryLayout,
        table: HistoryTable,
        loads: Sequence[int],
        step: Rows,
    ) -> Appending:
        return cls(connection, history, table, loads, step.low, step.high)

    def run(self) -> None:
        """Append all; TableRefused for an event that the target does not take."""
        error = self._attempt()
        if error is not None:
            raise self._refusal(error) from error

    def _attempt(self, *, keep: bool = True) -> psycopg.Error | None:
        """Why the events between both positions are refused; None if they are not."""
        insert = self.history.insert(self.table, self.loads, self.low, self.high)
        try:
            with self.connection.transaction(force_rollback=not keep):
                self.connection.execute(insert.encode())
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            return error
        return None

    def _refusal(self, error: psycopg.Error) -> TableRefused:
        """The first event that is refused: halves are tried until one is left."""
        places = self._places()
        while len(places) > 1:
            half = len(places) // 2
            part = replace(self, low=places[0], high=places[half - 1])
            why = part._attempt(keep=False)
            places = places[half:] if why is None else places[:half]
            error = why or error
        alone = replace(self, low=places[0], high=places[0])
        error = alone._attempt(keep=False) or error
        target, constraint = self.history.rules.target, error.diag.constraint_name
        return row_refused(target, places[0], alone._key(), error.sqlstate or "", constraint)

    def _places(self) -> list[Position]:
        """Where the events are."""
        chosen = self.history.chosen(self.loads, self.low, self.high)
        query = f"SELECT s.lsn, s.seq FROM {self.history.stage.name} s WHERE {chosen} ORDER BY 1, 2"
        found = self.connection.execute(query.encode()).fetchall()
        return [Position(Lsn(lsn), seq) for lsn, seq in found]

    def _key(self) -> dict[str, str | None]:
        stage = self.history.stage
        if not stage.keys:
            return {}
        values = ", ".join(f"s.v{index}::text" for index in stage.keys)
        chosen = self.history.chosen(self.loads, self.low, self.high)
        query = f"SELECT {values} FROM {stage.name} s WHERE {chosen}"
        row = self.connection.execute(query.encode()).fetchone()
        assert row is not None, "it was refused"
        return dict(zip(stage.key_places, row, strict=True))
