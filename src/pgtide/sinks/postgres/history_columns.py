"""Columns of a history table, and how they follow those of the source.

A column's comment holds the attnum and the type that it has at the source, which outlive every
rename on either side. One that was dropped stays. One whose type cannot be widened to the new one
is set aside under a name that tells its old type, and a new column takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from pgtide.errors import TargetError
from pgtide.sinks.delta.columns import COMMITTED_AT, LSN, RELATION, SEQ
from pgtide.sinks.delta.history import BEFORE, OP, UNCHANGED, XID
from pgtide.sinks.postgres.statements import quoted

OWN = {
    OP: "text",
    LSN: "pg_lsn",
    SEQ: "bigint",
    XID: "bigint",
    COMMITTED_AT: "timestamp with time zone",
    RELATION: "bigint",
    UNCHANGED: "text[]",
    BEFORE: "jsonb",
}
"""What every row has besides its values, as the lake's histories have it."""
NAME_BYTES = 63  # of a name in Postgres
ASIDE = "pgtide set aside"

_MARK = re.compile(r"pgtide (?:attnum (\d+)|column), (.+)", re.DOTALL)
_WIDER = {
    "smallint": ("integer", "bigint", "numeric", "real", "double precision"),
    "integer": ("bigint", "numeric", "double precision"),
    "bigint": ("numeric",),
    "real": ("double precision",),
    "numeric": ("numeric",),
    "character varying": ("character varying", "text"),
    "date": ("timestamp without time zone",),
}
_MODIFIED = re.compile(r"([a-z ]+)(?:\((\d+)(?:,(-?\d+))?\))?")


@dataclass(frozen=True)
class HistoryColumn:
    """A column: as it is, or as it should be."""

    name: str
    type: str  # in the target; of one that is there without its modifier
    source: str | None = None  # the type at the source; None: pgtide's own, or nobody's any more
    attnum: int | None = None
    described: bool = False  # by somebody: its comment is not pgtide's

    @classmethod
    def there(cls, name: str, kind: str, comment: str | None) -> HistoryColumn:
        """A column as the catalog has it."""
        match = _MARK.fullmatch(comment or "")
        if match is None:
            described = comment is not None and not comment.startswith(ASIDE)
            return cls(name, kind, described=described)
        return cls(name, kind, match[2], int(match[1]) if match[1] else None)

    @property
    def definition(self) -> str:
        return f"{quoted(self.name)} {self.type}"

    @property
    def mark(self) -> str:
        """The comment that tells which column of the source it is."""
        which = "column" if self.attnum is None else f"attnum {self.attnum}"
        return f"pgtide {which}, {self.source}"

    def is_for(self, wish: HistoryColumn) -> bool:
        """Whether it has the values of a column that is wanted."""
        if self.source is None or wish.source is None:
            return self.source == wish.source and self.name == wish.name and self.name in OWN
        if self.attnum is None or wish.attnum is None:
            return self.name == wish.name
        return self.attnum == wish.attnum


class Reshaping:
    """The way from the columns of a table to those that are wanted."""

    def __init__(
        self, table: str, there: Sequence[HistoryColumn], wanted: Sequence[HistoryColumn]
    ) -> None:
        """``table``: its name, quoted."""
        self._table = table
        self._columns = list(there)
        self._wanted = wanted
        self.statements: list[str] = []

    def run(self) -> None:
        """Find the statements."""
        for number, column in enumerate(self._columns):
            self._columns[number] = self._kept(column)
        self._refuse_lost()
        self._make_room()
        for number, wish in self._places():
            if self._columns[number].name != wish.name:
                self._rename(number, wish.name)
        for wish in self._wanted:
            if not any(column.is_for(wish) for column in self._columns):
                self._alter(f"ADD COLUMN {wish.definition}")
                self._columns.append(wish)
                self._comment(wish)

    def _kept(self, column: HistoryColumn) -> HistoryColumn:
        """A column that goes on, be it with a wider type, or is of the past from here on."""
        if column.source is None:
            return column
        wish = next((wish for wish in self._wanted if column.is_for(wish)), None)
        if wish is None or not (column.source == wish.source or self._widen(column, wish)):
            self._note(column.name, f"{ASIDE}, was {column.mark.removeprefix('pgtide ')}")
            return replace(column, source=None, attnum=None)
        attnum = column.attnum if wish.attnum is None else wish.attnum
        kept = replace(column, source=wish.source, attnum=attnum)
        if kept.mark != column.mark:
            self._comment(kept)
        return kept

    def _widen(self, column: HistoryColumn, wish: HistoryColumn) -> bool:
        assert column.source is not None
        assert wish.source is not None
        if not widens(column.source, wish.source):
            return False
        if column.type == unmodified(column.source):  # else somebody wants it otherwise
            self._alter(f"ALTER COLUMN {quoted(column.name)} TYPE {wish.type}")
        return True

    def _refuse_lost(self) -> None:
        """Refuse to begin a column anew of which only the comment is another one."""
        held = {wish.name for _, wish in self._places()}
        wanted = {w.name: w for w in self._wanted if w.source and w.name not in held}
        for column in self._columns:
            wish = wanted.get(column.name)
            if wish is None or not column.described:
                continue
            source = wish.source if column.type == unmodified(wish.type) else column.type
            mark = replace(wish, source=source).mark
            raise TargetError(
                f"the comment of column {column.name} of {self._table} is not pgtide's",
                detail="A history's columns say in their comments which of the source's they are.",
                hint="If it is the history's, give it its comment back: "
                f"{column_comment(self._table, column.name, mark)}. If it is yours, rename it.",
            )

    def _places(self) -> Iterator[tuple[int, HistoryColumn]]:
        """Columns that are there, by number, each with what it should be."""
        for number, column in enumerate(self._columns):
            for wish in self._wanted:
                if column.is_for(wish):
                    yield number, wish

    def _make_room(self) -> None:
        """Move columns that hold a name which another column is to have."""
        places = dict(self._places())
        names = {wish.name for wish in self._wanted}
        for number, column in enumerate(self._columns):
            wish = places.get(number)
            if column.name not in names or (wish is not None and wish.name == column.name):
                continue
            taken = names | {other.name for other in self._columns}
            if wish is None:
                free = free_name(column.name, f"__{_word(column.type)}", taken)
            else:
                free = free_name(f"_pgtide_attnum_{column.attnum}", "", taken)
            self._rename(number, free)

    def _rename(self, number: int, name: str) -> None:
        old = self._columns[number]
        self._alter(f"RENAME COLUMN {quoted(old.name)} TO {quoted(name)}")
        self._columns[number] = replace(old, name=name)

    def _alter(self, clause: str) -> None:
        self.statements.append(f"ALTER TABLE {self._table} {clause}")

    def _comment(self, column: HistoryColumn) -> None:
        if column.source is not None:
            self._note(column.name, column.mark)

    def _note(self, name: str, text: str) -> None:
        self.statements.append(column_comment(self._table, name, text))


def column_comment(table: str, column: str, text: str) -> str:
    """SQL: what a column's comment says."""
    literal = sql.Literal(text).as_string(None)
    return f"COMMENT ON COLUMN {table}.{quoted(column)} IS {literal}"


def widens(old: str, new: str) -> bool:
    """Whether every value of a type is one of the other, and prints as the source would have it."""
    before, after = _MODIFIED.fullmatch(old), _MODIFIED.fullmatch(new)
    if before is None or after is None or after[1] not in _WIDER.get(before[1], ()):
        return False
    if after[2] is None:
        return True
    if before[2] is None or after[1] != before[1]:
        return False
    digits, scale = (int(after[part] or 0) - int(before[part] or 0) for part in (2, 3))
    return scale >= 0 and digits >= scale


def unmodified(kind: str) -> str:
    """A type without its length, precision or scale."""
    return re.sub(r"\([^)]*\)", "", kind)


def free_name(name: str, suffix: str, taken: set[str]) -> str:
    """A name with a suffix that fits into a name's bytes, and a number where others have it."""
    free, number = _fitting(name, suffix), 1
    while free in taken:
        number += 1
        free = _fitting(name, f"{suffix}__{number}")
    return free


def _fitting(name: str, suffix: str) -> str:
    room = NAME_BYTES - len(suffix.encode())
    return name.encode()[:room].decode(errors="ignore") + suffix


def _word(kind: str) -> str:
    return re.sub(r"\W+", "_", kind).strip("_")[:20]
