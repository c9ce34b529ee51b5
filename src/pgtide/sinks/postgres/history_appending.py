"""Appending staged events to a history, and the one that the target refuses, by its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

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
        first, count = 0, self._count()
        while count > 1:
            half = count // 2
            part = replace(self, low=self._place(first), high=self._place(first + half - 1))
            why = part._attempt(keep=False)
            first, count = (first + half, count - half) if why is None else (first, half)
            error = why or error
        at = self._place(first)
        alone = replace(self, low=at, high=at)
        error = alone._attempt(keep=False) or error
        target, constraint = self.history.rules.target, error.diag.constraint_name
        return row_refused(target, at, alone._key(), error.sqlstate or "", constraint)

    def _count(self) -> int:
        return int(self._one("count(*)")[0])

    def _place(self, number: int) -> Position:
        """Where an event is, by its number in order."""
        lsn, seq = self._one("s.lsn, s.seq", f"ORDER BY 1, 2 OFFSET {number} LIMIT 1")
        return Position(Lsn(lsn), seq)

    def _key(self) -> dict[str, str | None]:
        """Of the one event that is meant."""
        stage = self.history.stage
        values = [f"s.v{index}::text" for index in stage.keys]
        found = self._one(", ".join(values)) if values else ()
        return dict(zip(stage.key_places, found, strict=True))

    def _one(self, columns: str, order: str = "") -> tuple[Any, ...]:
        """A row about the staged events."""
        chosen = self.history.chosen(self.loads, self.low, self.high)
        query = f"SELECT {columns} FROM {self.history.stage.name} s WHERE {chosen} {order}"
        row = self.connection.execute(query.encode()).fetchone()
        assert row is not None, "there are events"
        return row
