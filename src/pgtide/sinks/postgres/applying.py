"""Applying staged rows to tables, set by set, inside one transaction of the target.

Rows are written before others are deleted, those that are referred to first; then deletions, the
other way round. So whatever a foreign key does when a row goes finds nothing left to do. What
cannot be done in this order, or meets rows that are not as expected, raises ``Unexpected``: the
unit is done again, event by event (``ordered``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import Cursor

from pgtide.config.sinks import PostgresSettings
from pgtide.pipeline.batch import Batch
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.staged_rows import StagedRows
from pgtide.sinks.postgres.statements import Statements, counting
from pgtide.sinks.postgres.target_tables import (
    TargetTable,
    disable_triggers,
    missing_table,
    parents_first,
    read_tables,
)


class Unexpected(Exception):
    """Rows of the target are not what the changes take them for."""


@dataclass(frozen=True)
class Counts:
    """How many rows a stage has of what kind, in one segment."""

    inserts: int
    updates: int
    reads: int  # of rows that may be there or not
    deletes: int
    removals: int  # of rows that may be there or not
    moves: int  # that lack values
    fragments: int  # new rows that lack values which no other row has
    copies: int  # to be deleted, of rows without a key

    @property
    def any(self) -> bool:
        return any((self.inserts, self.updates, self.reads, self.deletes, self.removals))


@dataclass(frozen=True)
class Staged:
    """The rows of one stage in a segment, on their way into a table."""

    statements: Statements
    counts: Counts
    lenient: bool  # rows may be missing: they are still to be read

    @property
    def table(self) -> TargetTable:
        return self.statements.table


@dataclass
class Applier:
    """Applies the segments of one unit."""

    connection: SqlConnection
    batch: Batch
    rows: StagedRows
    loads: Sequence[int]
    settings: PostgresSettings
    _quiet: set[int] = field(default_factory=set)

    def apply(self, segment: int) -> None:
        """Bring the rows of a segment into their tables."""
        work = self.staged(segment)
        tables = list({one.table.oid: one.table for one in work}.values())
        order = [table.oid for table in parents_first(self.connection, tables)]
        work.sort(key=lambda one: order.index(one.table.oid))
        for one in work:
            self._fill(one, segment)
        for one in work:
            self._write(one, segment)
        for one in reversed(work):
            self._delete(one, segment)

    def staged(self, segment: int) -> list[Staged]:
        """Every stage that has rows in a segment."""
        found = []
        stages = self.rows.stages
        tables = read_tables(self.connection, [t.rules.target for _, t in stages.values()])
        for stage, table in stages.values():
            row = self._run(counting(stage), segment).fetchone()
            assert row is not None, "an aggregate has one row"
            counts = Counts(*map(int, row))
            if not counts.any:
                continue
            target = tables.get(table.rules.target)
            if target is None:
                raise missing_table(table.rules.target, self.batch.mark.pipeline)
            self._quieten(target)
            lacking = bool(table.traits.unsent)
            lenient = self.batch.completes(table.layout, self.batch.census.low)
            found.append(Staged(Statements(stage, target, lacking), counts, lenient))
        return found

    def look_again(self) -> None:
        """After a command nothing is known of the tables."""
        self._quiet.clear()

    def _quieten(self, table: TargetTable) -> None:
        """Keep what triggers did at the source from being done once more."""
        if self.settings.replication_role == "origin" and table.oid not in self._quiet:
            disable_triggers(self.connection, table)
            self._quiet.add(table.oid)

    def _fill(self, one: Staged, segment: int) -> None:
        if one.counts.fragments:
            raise Unexpected("new rows lack values")
        if (
            one.counts.moves
            and one.counts.moves != self._run(one.statements.fill_from_origin(), segment).rowcount
        ):
            raise Unexpected("rows that have moved are missing")

    def _write(self, one: Staged, segment: int) -> None:
        counts, statements = one.counts, one.statements
        if not statements.stage.keys:
            if counts.inserts or counts.reads:
                self._run(statements.insert_copies(), segment)
            return
        if counts.updates and not one.lenient:
            found = self._run(statements.update("p"), segment).rowcount
            if found != counts.updates:
                raise Unexpected("rows to update are missing")
        unsure = "pr" if one.lenient else "r"
        if counts.reads or (counts.updates and one.lenient):
            self._run(statements.update(unsure), segment)
            self._pass_over(one, unsure, segment)
            self._run(statements.insert(unsure, absent=True), segment)
        if counts.inserts:
            self._run(statements.insert("a"), segment)

    def _pass_over(self, one: Staged, known: str, segment: int) -> None:
        """Rows that are not there and not whole come later, if they are being read; else stop."""
        if not one.statements.unsent:
            return
        row = self._run(one.statements.not_whole(known), segment).fetchone()
        assert row is not None, "an aggregate has one row"
        if row[0] and not one.lenient:
            raise Unexpected("rows to update are missing")
        self.batch.pass_over((one.table.schema, one.table.table), row[0])

    def _delete(self, one: Staged, segment: int) -> None:
        counts, statements = one.counts, one.statements
        if not statements.stage.keys:
            if counts.copies:
                found = self._run(statements.delete_copies(), segment).rowcount
                if found != counts.copies:
                    raise Unexpected("rows to delete are missing")
            return
        if counts.deletes:
            found = self._run(statements.delete("p"), segment).rowcount
            if found != counts.deletes and not one.lenient:
                raise Unexpected("rows to delete are missing")
        if counts.removals:
            self._run(statements.delete("r"), segment)

    def _run(self, statement: str, segment: int) -> Cursor[tuple[Any, ...]]:
        parameters = {"segment": segment, "loads": list(self.loads)}
        return self.connection.execute(statement.encode(), parameters)
