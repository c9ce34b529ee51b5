"""Values of sequences, from the source to the target: no row carries them.

They are copied when nobody writes to the source any more. A sequence of the target that is ahead
of the source's is left alone: setting it back would hand out numbers twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from pgtide.config.patterns import TablePatterns, is_system_schema
from pgtide.errors import TargetError
from pgtide.postgres.catalog import read_layouts, selects
from pgtide.postgres.connection import SqlConnection, no_timeouts, translate

AT_ONCE = 200  # sequences in one query

_SEQUENCES = """
SELECT n.nspname, c.relname, s.seqincrement, s.seqcycle,
       has_sequence_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE')
FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relpersistence <> 't' ORDER BY 1, 2
"""

# The table whose column a sequence belongs to, and those whose defaults take numbers from it.
_USES = """
SELECT n.nspname, c.relname,
       (SELECT d.refobjid::bigint FROM pg_depend d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
          AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0
          AND d.deptype IN ('a', 'i') LIMIT 1),
       ARRAY (SELECT f.adrelid::bigint FROM pg_depend d JOIN pg_attrdef f ON f.oid = d.objid
              WHERE d.classid = 'pg_attrdef'::regclass
                AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'S' AND c.relpersistence <> 't'
"""
_TABLES = """
SELECT c.oid::bigint, n.nspname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p')
"""

Place = tuple[str, str]
"""Schema and name."""


@dataclass(frozen=True, slots=True)
class SequenceValue:
    """Where a sequence is."""

    schema: str
    name: str
    last_value: int
    is_called: bool
    increment: int
    cycles: bool

    @property
    def place(self) -> Place:
        return self.schema, self.name

    def is_ahead_of(self, other: SequenceValue) -> bool:
        """Whether its next number comes behind that of the other."""
        sign = 1 if self.increment > 0 else -1
        mine, theirs = (
            (sign * self.last_value, self.is_called),
            (
                sign * other.last_value,
                other.is_called,
            ),
        )
        return mine > theirs


@dataclass
class Copied:
    """What became of the sequences; names as ``schema.sequence``."""

    set: list[str] = field(default_factory=list)  # to another value than they had
    equal: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # the target does not have them
    ahead: list[str] = field(default_factory=list)  # the target is beyond the source
    unreadable: list[str] = field(default_factory=list)  # the role may not read them

    @property
    def complete(self) -> bool:
        return not self.missing and not self.unreadable


def sequences_of(conn: SqlConnection, patterns: Sequence[TablePatterns]) -> set[Place]:
    """The sequences that belong with the tables which all patterns select.

    Those of their columns and defaults, wherever they are. Of those that belong to no table, what
    is in the schemas of the tables, and what the patterns mean by its name. Not those of other
    tables.
    """
    layouts = read_layouts(conn)
    tables = {
        oid: schema
        for oid, schema, table in conn.execute(_TABLES)
        if all(
            each.matches(schema, table) or (oid in layouts and selects(each, layouts[oid]))
            for each in patterns
        )
    }
    schemas = set(tables.values())
    return {
        (schema, name)
        for schema, name, owner, users in conn.execute(_USES)
        if not tables.keys().isdisjoint(users)
        or owner in tables
        or (
            owner is None
            and (schema in schemas or all(each.matches(schema, name) for each in patterns))
        )
    }


def read_sequences(
    conn: SqlConnection, places: Collection[Place] | None = None
) -> tuple[list[SequenceValue], list[str]]:
    """Some sequences, or all but the system's, in one snapshot.

    The second list names those that the role may not read.
    """
    found: list[SequenceValue] = []
    no_timeouts(conn)
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        rows = [
            row
            for row in conn.execute(_SEQUENCES)
            if not is_system_schema(row[0]) and (places is None or row[:2] in places)
        ]
        closed = [f"{schema}.{name}" for schema, name, _, _, readable in rows if not readable]
        open_ones = [row for row in rows if row[4]]
        for first in range(0, len(open_ones), AT_ONCE):
            found += _values(conn, open_ones[first : first + AT_ONCE])
    return found, closed


def copy_sequences(
    source: SqlConnection, target: SqlConnection, places: Collection[Place] | None = None
) -> Copied:
    """Set the target's sequences of the same names to where the source's are, all or none."""
    wanted, closed = read_sequences(source, places)
    have = {value.place: value for value in read_sequences(target, places)[0]}
    copied = Copied(unreadable=closed)
    try:
        with target.transaction():
            for value in wanted:
                _copy(target, value, have.get(value.place), copied)
    except psycopg.errors.InsufficientPrivilege as exc:
        raise TargetError(
            "the role may not set sequences of the target",
            detail=f"{exc.diag.message_primary}.",
            hint="Connect as the owner of the target's tables: sink.url",
        ) from exc
    except psycopg.Error as exc:
        raise TargetError(
            "a sequence of the target cannot be set", detail=f"{translate(exc).message}."
        ) from exc
    return copied


def _values(
    conn: SqlConnection, rows: Sequence[tuple[str, str, int, bool, bool]]
) -> list[SequenceValue]:
    query = sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT {}, last_value, is_called FROM {}").format(
            sql.Literal(index), sql.Identifier(row[0], row[1])
        )
        for index, row in enumerate(rows)
    )
    values = {index: (last, called) for index, last, called in conn.execute(query)}
    return [
        SequenceValue(schema, name, *values[index], increment, cycles)
        for index, (schema, name, increment, cycles, _) in enumerate(rows)
    ]


def _copy(
    target: SqlConnection, value: SequenceValue, old: SequenceValue | None, copied: Copied
) -> None:
    name = f"{value.schema}.{value.name}"
    if old is None:
        copied.missing.append(name)
    elif (old.last_value, old.is_called) == (value.last_value, value.is_called):
        copied.equal.append(name)
    elif old.is_ahead_of(value) and not old.cycles:
        copied.ahead.append(name)
    else:
        place = sql.Identifier(value.schema, value.name).as_string(None)
        target.execute(
            "SELECT setval(%s::regclass, %s, %s)", [place, value.last_value, value.is_called]
        )
        copied.set.append(name)
