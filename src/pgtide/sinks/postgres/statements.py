"""The statements that take rows from a stage into their table. No connection, no clock.

Every statement reads the rows of one segment that were chosen, by numbers which stand in it: a
statement without parameters may have any name in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from psycopg import sql

from pgtide.errors import TargetError
from pgtide.sinks.postgres.stages import Stage
from pgtide.sinks.postgres.target_tables import TargetColumn, TargetTable

RANGES = 4
"""Into how many ranges keys are parted, by bits of their hash. Targets note ranges by number."""


@dataclass(frozen=True)
class Chosen:
    """Which rows of stages count: those of some loads, and of all or some ranges of keys."""

    loads: Sequence[int]
    ranges: Sequence[int] | None = None

    def of(self, stage: Stage, segment: int | None = None) -> str:
        """The condition; ``segment``: of that one only."""
        conditions = [f"s.load = ANY ('{{{','.join(map(str, self.loads))}}}'::bigint[])"]
        if segment is not None:
            conditions.append(f"s.segment = {segment}")
        if self.ranges is not None:
            key = ", ".join(f"s.v{index}" for index in stage.keys)
            number = f"hashtextextended(concat_ws('/', {key}), 0) & {RANGES - 1}"
            conditions.append(f"({number}) IN ({', '.join(map(str, self.ranges))})")
        return " AND ".join(conditions)


@dataclass(frozen=True)
class Statements:
    """The statements for one stage and its table."""

    stage: Stage
    table: TargetTable
    unsent: bool = False  # whether some values were not sent
    chosen: str = "true"  # which rows of the stage

    @cached_property
    def columns(self) -> list[tuple[int, TargetColumn]]:
        """Values of the stage, each with the column that takes it; not what is generated."""
        found = []
        for index, column in enumerate(self.stage.columns):
            known = self.table.columns.get(column.name)
            if known is None:
                name = f"{self.table.schema}.{self.table.table}"
                raise TargetError(
                    f"the target's table {name} has no column {column.name}",
                    hint=f"Add the column there, or exclude it by a rule for {name}.",
                )
            if not known.generated:
                found.append((index, known))
        return found

    # -- what happens ---------------------------------------------------------------------

    def fill_from_origin(self) -> str:
        """Take values that were not sent from the row that had the old key."""
        values = ", ".join(
            f"v{index} = CASE WHEN {index} = ANY (s.unsent)"
            f" THEN {self._as_staged(index, column)} ELSE s.v{index} END"
            for index, column in self.columns
        )
        return (
            f"UPDATE {self.stage.name} s SET {values}, unsent = NULL FROM {self.table.rows} t"
            f" WHERE {self.chosen} AND s.unsent IS NOT NULL AND s.o{self.stage.keys[0]} IS NOT NULL"
            f" AND {self._same_key('o')}"
        )

    def update(self, known: str, *, identities: bool = False) -> str:
        """Rows that are there; ``identities``: columns GENERATED ALWAYS as well."""
        names = [
            (index, column)
            for index, column in self.columns
            if index not in self.stage.keys and (identities or not column.always)
        ]
        values = ", ".join(f"{quoted(c.name)} = {self._new(i, c)}" for i, c in names)
        meant = (
            f"WHERE {self.chosen} AND s.kind IN ('u', 'p') AND {_known(known)}"
            f" AND {self._same_key()}"
        )
        if not values:  # there is nothing but the key: whether rows are there is all that counts
            return f"SELECT FROM {self.table.rows} t, {self.stage.name} s {meant}"
        return f"UPDATE {self.table.rows} t SET {values} FROM {self.stage.name} s {meant}"

    @property
    def identities(self) -> list[str]:
        """Columns besides the key that are GENERATED ALWAYS AS IDENTITY."""
        keys = self.stage.keys
        return [c.name for index, c in self.columns if c.always and index not in keys]

    def other_identities(self) -> str:
        """Whether some row has another value in such a column than it is to have."""
        differ = " OR ".join(
            f"t.{quoted(column.name)} IS DISTINCT FROM {self._value(index, column)}"
            for index, column in self.columns
            if column.name in self.identities
        )
        return (
            f"SELECT EXISTS (SELECT FROM {self.table.rows} t JOIN {self.stage.name} s"
            f" ON {self._same_key()} WHERE {self.chosen} AND s.kind IN ('u', 'p') AND ({differ}))"
        )

    def moving_identities(self) -> str:
        """Whether some event is not of a row that has its value in such a column already."""
        same = " AND ".join(
            f"t.{quoted(column.name)} = {self._value(index, column)}"
            for index, column in self.columns
            if column.name in self.identities
        )
        there = f"SELECT FROM {self.table.rows} t WHERE {self._same_key('o')} AND {same}"
        return (
            f"SELECT EXISTS (SELECT FROM {self.stage.name} s WHERE {self.chosen}"
            f" AND s.kind IN ('u', 'p') AND s.known <> 'a' AND NOT EXISTS ({there}))"
        )

    def moved_identities(self) -> str:
        """Whether some row is to get another key, part of which is GENERATED ALWAYS."""
        differ = " OR ".join(
            f"s.o{index} IS DISTINCT FROM s.v{index}" for index, c in self._keys if c.always
        )
        return f"SELECT EXISTS (SELECT FROM {self.stage.name} s WHERE {self.chosen} AND ({differ}))"

    def insert(self, known: str, *, absent: bool = False) -> str:
        """Rows that are not there; ``absent``: look first, and leave out what is not whole."""
        names = ", ".join(quoted(column.name) for _, column in self.columns)
        values = ", ".join(self._value(index, column) for index, column in self.columns)
        query = (
            f"INSERT INTO {self.table.name} ({names}) OVERRIDING SYSTEM VALUE"
            f" SELECT {values} FROM {self.stage.name} s WHERE {self.chosen}"
            f" AND s.kind = 'u' AND {_known(known)}"
        )
        return f"{query} AND s.unsent IS NULL AND {self._absent()}" if absent else query

    def present(self, known: str) -> str:
        """Some row that is there already."""
        return (
            f"SELECT FROM {self.table.rows} t JOIN {self.stage.name} s ON {self._same_key()}"
            f" WHERE {self.chosen} AND s.kind = 'u' AND {_known(known)} LIMIT 1"
        )

    def not_whole(self, known: str) -> str:
        """How many rows are not there, and cannot be made because values were not sent."""
        return (
            f"SELECT count(*) FROM {self.stage.name} s WHERE {self.chosen} AND s.kind = 'u'"
            f" AND {_known(known)} AND s.unsent IS NOT NULL AND {self._absent()}"
        )

    def delete(self, known: str) -> str:
        """Rows that are to be gone.

        Of rows that may be there or not, none whose key, written in another way, has just come.
        """
        query = (
            f"DELETE FROM {self.table.rows} t USING {self.stage.name} s"
            f" WHERE {self.chosen} AND s.kind = 'd' AND {_known(known)} AND {self._same_key()}"
        )
        if "r" in known:
            came = f"{self.chosen} AND s.kind = 'u' AND {self._same_key()}"
            query += f" AND NOT EXISTS (SELECT FROM {self.stage.name} s WHERE {came})"
        return query

    def copy(self) -> str:
        """Takes the values of rows straight into the table, texts as they are."""
        return f"COPY {self.table.name} {self._named} FROM STDIN"

    # -- rows without a key ---------------------------------------------------------------

    def insert_copies(self) -> str:
        values = ", ".join(self._value(index, column) for index, column in self.columns)
        return (
            f"INSERT INTO {self.table.name} {self._named} OVERRIDING SYSTEM VALUE SELECT {values}"
            f" FROM {self.stage.name} s, generate_series(1, coalesce(s.copies, 1))"
            f" WHERE {self.chosen} AND s.kind = 'u'"
        )

    def delete_copies(self) -> str:
        """So many of the rows that are equal in all columns."""
        here, there = self._there_is(self.columns), self._staged(self.columns)
        found = (
            f"SELECT t.tableoid AS at_table, t.ctid AS at_row, s.copies,"
            f" row_number() OVER (PARTITION BY s.ctid {self._same_print}) AS number"
            f" FROM {self.table.rows} t JOIN {self.stage.name} s ON {here} = {there}"
            f" WHERE {self.chosen} AND s.kind = 'd'"
        )
        return (
            f"DELETE FROM {self.table.rows} t USING ({found}) f"
            " WHERE t.tableoid = f.at_table AND t.ctid = f.at_row AND f.number <= -f.copies"
        )

    # -- pieces ---------------------------------------------------------------------------

    @property
    def same_key(self) -> str:
        """Whether a row of the table and one of the stage have the same key."""
        return self._same_key()

    @cached_property
    def _keys(self) -> list[tuple[int, TargetColumn]]:
        return [(index, column) for index, column in self.columns if index in self.stage.keys]

    def _absent(self) -> str:
        return f"NOT EXISTS (SELECT FROM {self.table.rows} t WHERE {self._same_key()})"

    def _same_key(self, side: str = "v") -> str:
        return " AND ".join(
            f"t.{quoted(column.name)} {column.operator('=')} {self._value(index, column, side)}"
            for index, column in self._keys
        )

    def _value(self, index: int, column: TargetColumn, side: str = "v") -> str:
        """A staged value as the column's type."""
        value = f"s.{side}{index}"
        same = self.stage.typed[index] and self.stage.columns[index].type_name == column.type
        return value if same else f"{value}::{column.type}"

    def _new(self, index: int, column: TargetColumn) -> str:
        value = self._value(index, column)
        if not self.unsent:
            return value
        kept = f"t.{quoted(column.name)}"
        return f"CASE WHEN {index} = ANY (s.unsent) THEN {kept} ELSE {value} END"

    def _as_staged(self, index: int, column: TargetColumn) -> str:
        kept = f"t.{quoted(column.name)}"
        if self.stage.typed[index]:
            return f"{kept}::{self.stage.columns[index].type_name}"
        return f"{kept}::text"

    @property
    def _named(self) -> str:
        """The columns that take values; a table may have none."""
        names = ", ".join(quoted(column.name) for _, column in self.columns)
        return f"({names})" if names else ""

    def _there_is(self, columns: Sequence[tuple[int, TargetColumn]]) -> str:
        return _row(f"t.{quoted(column.name)}::text" for _, column in columns)

    def _staged(self, columns: Sequence[tuple[int, TargetColumn]]) -> str:
        return _row(f"({self._value(index, column)})::text" for index, column in columns)

    @cached_property
    def _same_print(self) -> str:
        """Which of equal rows without a key comes first: that which is printed alike, too.

        As a text a bpchar is without the blanks at its end; types of others may say anything.
        """
        loose = [(i, c) for i, c in self.columns if c.type == "bpchar" or not self.stage.typed[i]]
        if not loose:
            return ""
        here = _row(f"t.{quoted(column.name)}" for _, column in loose)
        there = _row(self._value(index, column) for index, column in loose)
        return f"ORDER BY {here} = {there} DESC"


def counting(stage: Stage, chosen: Chosen) -> str:
    """How many rows a stage has of what kind, by segment: the fields of ``Counts``."""
    moves = f"s.o{stage.keys[0]} IS NOT NULL" if stage.moves and stage.keys else "false"
    kinds = (
        "s.kind = 'u' AND s.known = 'a'",
        "s.kind IN ('u', 'p') AND s.known = 'p'",
        "s.kind IN ('u', 'p') AND s.known = 'r'",
        "s.kind = 'd' AND s.known = 'p'",
        "s.kind = 'd' AND s.known = 'r'",
        f"s.unsent IS NOT NULL AND {moves}",
        f"s.unsent IS NOT NULL AND s.known = 'a' AND NOT ({moves})",
    )
    counts = [f"count(*) FILTER (WHERE {kind})" for kind in kinds]
    counts.append("coalesce(-sum(s.copies) FILTER (WHERE s.kind = 'd'), 0)")
    found = ", ".join(["s.segment", *counts])
    return f"SELECT {found} FROM {stage.name} s WHERE {chosen.of(stage)} GROUP BY 1"


def _row(values: Iterable[str]) -> str:
    """Values as one text."""
    return f"ROW({', '.join(values)})::text"


def _known(known: str) -> str:
    """What is known about the rows that are meant: one or more letters."""
    return f"s.known IN ({', '.join(repr(letter) for letter in known)})"


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return sql.Identifier(name).as_string(None)
