"""Tables of a history: made by pgtide, each for one relation of the source, and moved with it.

A table's comment says whose it is: the relation, the log and the pipeline. So it is found under
whatever name, goes with its table when that is dropped, and is there in a copy of the database.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from pgtide.errors import TargetError
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.steps import Reshaped, Rows
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.delta.columns import LSN, SEQ
from pgtide.sinks.postgres.history_columns import (
    HistoryColumn,
    Reshaping,
    column_comment,
    free_name,
)
from pgtide.sinks.postgres.statements import quoted
from pgtide.sinks.postgres.target_tables import quoted_name
from pgtide.sinks.source_names import SourceNames
from pgtide.spark.layout import TableName

_PREFIX = "pgtide history "
_TABLES = f"""
SELECT n.nspname, c.relname, d.description
FROM pg_catalog.pg_description d
JOIN pg_catalog.pg_class c ON c.oid = d.objoid AND c.relkind IN ('r', 'p')
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE d.classoid = 'pg_catalog.pg_class'::regclass AND d.objsubid = 0
  AND starts_with(d.description, '{_PREFIX}')
"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, -1), col_description(a.attrelid, a.attnum)
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


@dataclass(frozen=True)
class Owner:
    """Whose history a table is."""

    relation: int
    log: str
    pipeline: str

    @property
    def comment(self) -> str:
        return _PREFIX + json.dumps(vars(self), ensure_ascii=False)


def read_histories(connection: SqlConnection) -> dict[TableName, Owner]:
    """All histories of the target."""
    found = connection.execute(_TABLES.encode()).fetchall()
    return {(schema, table): _owner(comment) for schema, table, comment in found}


def _owner(comment: str) -> Owner:
    try:
        facts: dict[str, Any] = json.loads(comment.removeprefix(_PREFIX))
        return Owner(int(facts["relation"]), str(facts["log"]), str(facts["pipeline"]))
    except (ValueError, KeyError, TypeError):
        return Owner(0, "", "")  # somebody's own words: not one of ours


def refuse_histories(connection: SqlConnection, pipeline: str, log: str) -> None:
    """Refuse to make a mirror of what a pipeline has written a history to.

    The source may have histories of another log, which are tables like any other.
    """
    known = read_histories(connection).items()
    mine = [name for name, owner in known if owner == Owner(owner.relation, log, pipeline)]
    if mine:
        raise TargetError(
            f"pipeline {pipeline} has written a history to its target",
            detail=f"{'.'.join(min(mine))} has changes, not rows: a mirror would alter them.",
            hint="Set mode to history again, or give the mirror a pipeline and a database of its "
            "own.",
        )


@dataclass(frozen=True)
class HistoryTable:
    """A table that is ready for rows."""

    name: str  # quoted
    types: dict[str, str]  # of its columns by name, without modifiers


class HistoryTables:
    """The histories that a pipeline writes, inside one transaction."""

    def __init__(self, connection: SqlConnection, batch: Batch, log: str) -> None:
        self._connection = connection
        self._names = SourceNames(batch)
        self._pipeline = batch.scope.pipeline
        self._log = log
        self._places: dict[int, TableName] = {}
        for name, owner in read_histories(connection).items():
            if owner == self._owner(owner.relation):
                self._places[owner.relation] = name

    def ready(self, step: Rows | Reshaped, columns: Sequence[HistoryColumn]) -> HistoryTable:
        """The table of a step's relation, under its name and with these columns."""
        relation, name = step.layout.shape.oid, self._names.target(step.table)
        place = self._places.get(relation)
        if place is None:
            self._make_way(name, step.table)
            self._create(relation, name, columns)
        elif place != name:  # of a rename that nobody has told
            self._make_way(name, step.table)
            self._move(relation, name)
        table, there = quoted_name(name), self._columns(name)
        reshaping = Reshaping(table, there, columns)
        reshaping.run()
        for statement in reshaping.statements:
            self._run(statement)
        if reshaping.statements:
            there = self._columns(name)
        return HistoryTable(table, {column.name: column.type for column in there})

    def rename(self, relation: int, table: TableName) -> None:
        """Follow a table of the source to its new name; nothing if none of its rows came yet."""
        name = self._names.target(table)
        if self._places.get(relation) in (None, name):
            return
        self._make_way(name, table)
        self._move(relation, name)

    def _make_way(self, name: TableName, table: TableName) -> None:
        """See that a name is free: a history that has it was of a table which is gone."""
        holder = next((relation for relation, at in self._places.items() if at == name), None)
        if holder is not None:
            self._names.refuse_both(table, holder)
            schema, old = name
            self._move(holder, (schema, free_name(old, f"__{holder}", self._tables_in(schema))))
        elif self._exists(name):
            raise TargetError(
                f"the target has a {'.'.join(name)} that is not this pipeline's history",
                detail="A history is made by pgtide, and has nothing but the changes of one table.",
                hint="Route the table to another name or schema, or move away what is there.",
            )

    def _create(self, relation: int, name: TableName, columns: Sequence[HistoryColumn]) -> None:
        table = quoted_name(name)
        self._make_schema(name[0])
        # A name of its own: it has to be free wherever the table moves.
        key = f"_pgtide_{relation}_{hashlib.sha256(self._pipeline.encode()).hexdigest()[:8]}"
        definitions = ", ".join(column.definition for column in columns)
        primary = f"CONSTRAINT {quoted(key)} PRIMARY KEY ({LSN}, {SEQ})"
        self._run(f"CREATE TABLE {table} ({definitions}, {primary})")
        comment = sql.Literal(self._owner(relation).comment).as_string(None)
        self._run(f"COMMENT ON TABLE {table} IS {comment}")
        for column in columns:
            if column.source is not None:
                self._run(column_comment(table, column.name, column.mark))
        self._places[relation] = name

    def _move(self, relation: int, to: TableName) -> None:
        """Give a table another name, be it in another schema, where its old one may be taken."""
        name = self._places[relation]
        if name[0] != to[0]:
            between = f"_pgtide_{relation}_moving"
            self._run(f"ALTER TABLE {quoted_name(name)} RENAME TO {quoted(between)}")
            self._make_schema(to[0])
            moving = quoted_name((name[0], between))
            self._run(f"ALTER TABLE {moving} SET SCHEMA {quoted(to[0])}")
            name = to[0], between
        self._run(f"ALTER TABLE {quoted_name(name)} RENAME TO {quoted(to[1])}")
        self._places[relation] = to

    def _make_schema(self, schema: str) -> None:
        query = "SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s"
        # Without looking first, the right to make one would be needed where it is there.
        if self._connection.execute(query, [schema]).fetchone() is None:
            self._run(f"CREATE SCHEMA {quoted(schema)}")

    def _owner(self, relation: int) -> Owner:
        return Owner(relation, self._log, self._pipeline)

    def _columns(self, name: TableName) -> list[HistoryColumn]:
        found = self._connection.execute(_COLUMNS, [quoted_name(name)]).fetchall()
        return [HistoryColumn.there(*row) for row in found]

    def _exists(self, name: TableName) -> bool:
        return name[1] in self._tables_in(name[0])

    def _tables_in(self, schema: str) -> set[str]:
        """Names in a schema that no table can have."""
        query = (
            "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s"
        )
        return {name for (name,) in self._connection.execute(query, [schema]).fetchall()}

    def _run(self, statement: str) -> None:
        self._connection.execute(statement.encode())
