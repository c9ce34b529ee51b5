"""Applying staged rows to tables, set by set, inside one transaction of the target.

Rows are written before others are deleted, those that are referred to first; then deletions, the
other way round. So whatever a foreign key does when a row goes finds nothing left to do. What
cannot be done in this order, or meets rows that are not as expected, raises ``Unexpected``: the
unit is done again, event by event (``ordered``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from psycopg import Cursor

from pgtide.config.sinks import PostgresSettings
from pgtide.errors import TargetError
from pgtide.pipeline.batch import Batch
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.references import parents_first, read_references
from pgtide.sinks.postgres.failures import TableRefused
from pgtide.sinks.postgres.staged_rows import StagedRows, TableRows
from pgtide.sinks.postgres.stages import Stage
from pgtide.sinks.postgres.statements import Chosen, Statements, counting
from pgtide.sinks.postgres.target_tables import (
    TargetTable,
    disable_triggers,
    missing_table,
    read_tables,
    unlocked,
)
from pgtide.spark.layout import TableName


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
    chosen: Chosen
    settings: PostgresSettings
    passed_over: dict[TableName, int] = field(default_factory=dict)
    """Changes of rows that are still to come; they count when the transaction does."""
    _quiet: set[int] = field(default_factory=set)

    def apply(self, segment: int) -> None:
        """Bring the rows of a segment into their tables."""
        work = self.staged(segment)
        tables = sorted({one.table.oid for one in work})
        order = parents_first(tables, read_references(self.connection, tables))
        work.sort(key=lambda one: order.index(one.table.oid))
        for one in work:
            self._fill(one)
        for one in work:
            self._write(one)
        for one in reversed(work):
            self._delete(one)

    def staged(self, segment: int) -> list[Staged]:
        """Every stage that has rows in a segment."""
        found = []
        mine = self._counts.get(segment, [])
        tables = read_tables(self.connection, [table.rules.target for _, table, _ in mine])
        for stage, table, counts in mine:
            target = tables.get(table.rules.target)
            if target is None:
                raise missing_table(table.rules.target, self.batch.scope.pipeline)
            self._quieten(target)
            chosen = self.chosen.of(stage, segment)
            statements = Statements(stage, target, bool(table.traits.unsent), chosen)
            lenient = self.batch.completes(table.layout, self.batch.census.low)
            found.append(Staged(statements, counts, lenient))
        return found

    def check(self) -> None:
        """Find out what deferred constraints refuse: nobody knows in this order."""
        raise Unexpected("constraints have still to look at rows")

    def look_again(self) -> None:
        """After a command nothing is known of the tables."""
        self._quiet.clear()

    @cached_property
    def _counts(self) -> dict[int, list[tuple[Stage, TableRows, Counts]]]:
        """By segment, what each stage holds; asked once, since there may be many of both."""
        found: dict[int, list[tuple[Stage, TableRows, Counts]]] = {}
        for stage, table in self.rows.stages.values():
            for segment, *counts in self._run(counting(stage, self.chosen)).fetchall():
                item = (stage, table, Counts(*map(int, counts)))
                found.setdefault(segment, []).append(item)
        return found

    def _quieten(self, table: TargetTable) -> None:
        """Keep what triggers did at the source from being done once more."""
        if self.settings.replication_role == "origin" and table.oid not in self._quiet:
            disable_triggers(self.connection, table)
            self._quiet.add(table.oid)

    def _fill(self, one: Staged) -> None:
        if one.counts.fragments:
            raise Unexpected("new rows lack values")
        if (
            one.counts.moves
            and one.counts.moves != self._run(one.statements.fill_from_origin()).rowcount
        ):
            raise Unexpected("rows that have moved are missing")

    def _write(self, one: Staged) -> None:
        counts, statements = one.counts, one.statements
        if not statements.stage.keys:
            if counts.inserts or counts.reads:
                self._run(statements.insert_copies())
            return
        identities = self._identities(one)
        with unlocked(self.connection, one.table, identities):
            self._update(one, bool(identities))
        if counts.reads or (counts.updates and one.lenient):
            unsure = "pr" if one.lenient else "r"
            self._pass_over(one, unsure)
            self._run(statements.insert(unsure, absent=True))
        if counts.inserts:
            self._expect_none(one)
            self._run(statements.insert("a"))

    def _update(self, one: Staged, identities: bool) -> None:
        counts, statements = one.counts, one.statements
        if counts.updates and not one.lenient:
            found = self._run(statements.update("p", identities=identities)).rowcount
            if found != counts.updates:
                raise Unexpected("rows to update are missing")
        if counts.reads or (counts.updates and one.lenient):
            unsure = "pr" if one.lenient else "r"
            self._run(statements.update(unsure, identities=identities))

    def _expect_none(self, one: Staged) -> None:
        """See that rows which are new are not there, where the table does not see to that."""
        statements = one.statements
        keys = statements.stage.key_places
        if not one.table.is_unique(keys) and self._run(statements.present("a")).rowcount:
            raise Unexpected("rows to insert are there")

    def _identities(self, one: Staged) -> list[str]:
        """Columns GENERATED ALWAYS in which rows are to get other values than they have."""
        names = one.statements.identities
        if not names or not (one.counts.updates or one.counts.reads or self._overwrites(one)):
            return []
        found = self._run(one.statements.other_identities()).fetchone()
        return names if found is not None and found[0] else []

    def _overwrites(self, one: Staged) -> bool:
        """Whether a row that is there already is made as the one that was inserted."""
        return bool(one.counts.inserts) and self.settings.on_conflict == "apply"

    def _pass_over(self, one: Staged, known: str) -> None:
        """Rows that are not there and not whole come later, if they are being read; else stop."""
        if not one.statements.unsent:
            return
        row = self._run(one.statements.not_whole(known)).fetchone()
        assert row is not None, "an aggregate has one row"
        if row[0] and not one.lenient:
            raise Unexpected("rows to update are missing")
        self._count_passed(one, row[0])

    def _count_passed(self, one: Staged, rows: int) -> None:
        name = one.table.schema, one.table.table
        self.passed_over[name] = self.passed_over.get(name, 0) + rows

    def _delete(self, one: Staged) -> None:
        counts, statements = one.counts, one.statements
        if not statements.stage.keys:
            if counts.copies:
                self._refuse_changes(one)
                found = self._run(statements.delete_copies()).rowcount
                if found != counts.copies:
                    raise Unexpected("rows to delete are missing")
            return
        if counts.deletes:
            found = self._run(statements.delete("p")).rowcount
            if found != counts.deletes and not one.lenient:
                raise Unexpected("rows to delete are missing")
        if counts.removals:
            self._run(statements.delete("r"))

    def _refuse_changes(self, one: Staged) -> None:
        """Without a key, and with ``keyless: append``, rows only come."""
        if self.settings.keyless == "append":
            name = (one.table.schema, one.table.table)
            error = TargetError(
                f"rows of {'.'.join(name)} were changed or deleted",
                detail="It has no key, and the target takes its inserts only (keyless: append).",
                hint="Set keyless to match, or leave the table out of the pipeline's tables.",
            )
            raise TableRefused(name, error)

    def _run(self, statement: str) -> Cursor[tuple[Any, ...]]:
        return self.connection.execute(statement.encode())
