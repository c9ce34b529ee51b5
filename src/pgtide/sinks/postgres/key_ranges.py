"""Ranges of one table's keys in parallel: for many rows, where tables need not move together.

Every range is a transaction that also notes how far it is, as tables on their own do. The table's
own progress comes last and takes the notes along. After a crash ranges that are ahead leave out
what they have, so conflicts are told as ever. Which rows may be parted is a matter of the changes
(no key changes, and a key has one text) and of the table (no constraint looks at two rows).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import psycopg

from pgtide import oids
from pgtide.config.sinks import PostgresSettings
from pgtide.errors import TargetUnavailable
from pgtide.log.reader import Log
from pgtide.pipeline.reading import LogFrames
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.applying import Applier, Unexpected
from pgtide.sinks.postgres.bookkeeping import read_progress
from pgtide.sinks.postgres.failures import is_of_a_row
from pgtide.sinks.postgres.session import connect_target
from pgtide.sinks.postgres.staged_rows import StagedRows, TableRows
from pgtide.sinks.postgres.stager import Copied
from pgtide.sinks.postgres.statements import RANGES, Chosen
from pgtide.sinks.postgres.target_tables import TargetTable, disable_triggers, read_tables
from pgtide.sinks.postgres.transaction import TargetTransaction
from pgtide.sinks.postgres.units import RowsOf, Unit

RANGED_ROWS = 50_000  # events of a table in a unit, from which on its keys are parted
# Types of which a value has one text. Not so: numbers with a scale, -0, padding, other's types.
_ONE_TEXT = frozenset(
    {
        *(oids.BOOL, oids.BYTEA, oids.INT8, oids.INT2, oids.INT4, oids.TEXT, oids.VARCHAR),
        *(oids.DATE, oids.TIMESTAMP, oids.TIMESTAMPTZ, oids.UUID),
    }
)
_APART = """
WITH mine AS (
    SELECT relid FROM pg_catalog.pg_partition_tree(%(table)s::oid) UNION SELECT %(table)s::oid
), unique_in AS (
    SELECT i.indpred IS NULL AS total, ARRAY(
        SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid
          AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) AS columns
    FROM pg_catalog.pg_index i JOIN mine ON relid = indrelid
    WHERE i.indisunique OR i.indisexclusion
)
SELECT NOT EXISTS (
    SELECT FROM unique_in
    WHERE NOT (total AND columns @> %(keys)s::text[] AND columns <@ %(keys)s::text[])
) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_constraint
    WHERE contype = 'f' AND conrelid = %(table)s::oid AND confrelid = %(table)s::oid
) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
    WHERE a.attrelid = %(table)s::oid AND a.attname::text = ANY (%(keys)s)
      AND NOT c.collisdeterministic
)
"""

Ranges = Mapping[int, Position]
"""By number, how far each range is that is ahead of its table."""


def read_ranges(connection: SqlConnection, pipeline: str, table: str) -> dict[int, Position]:
    """The ranges of a table that are ahead of it."""
    query = 'SELECT range, lsn::text, seq FROM pgtide.ranges WHERE pipeline = %s AND "table" = %s'
    found = connection.execute(query, [pipeline, table]).fetchall()
    return {number: Position(Lsn.parse(lsn), seq) for number, lsn, seq in found}


def ranges_ahead(connection: SqlConnection, pipeline: str, tables: Collection[str]) -> set[Lsn]:
    """Where ranges of some tables are that are ahead of them."""
    query = 'SELECT lsn::text FROM pgtide.ranges WHERE pipeline = %s AND "table" = ANY (%s)'
    found = connection.execute(query, [pipeline, list(tables)]).fetchall()
    return {Lsn.parse(lsn) for (lsn,) in found}


class RangedTransaction(TargetTransaction):
    """Brings one unit of one table into the target, by ranges where that can be."""

    def __init__(
        self,
        connection: SqlConnection,
        settings: PostgresSettings,
        unit: Unit,
        frames: LogFrames,
        log: Log,
        scope: str,
        table: str,
        ahead: Ranges,
    ) -> None:
        """``table``: under which name ranges are noted; none ends inside of the unit."""
        super().__init__(connection, settings, unit, frames, log, scope)
        self._table = table
        self._ahead = {number for number, at in ahead.items() if at >= unit.high}
        if self._ahead:
            self._load.refrain()

    def run(self, reached: Position, *, in_order: bool = False) -> bool:
        if not self._ahead and not self._can_be_parted(reached):
            return super().run(reached, in_order=in_order)
        rows = self._rows(self._unit.tables)
        self._stager.prepare([rows])
        copied = self._stager.stage(rows)
        with self._connection.transaction():
            self._begin(reached)
            self._quieten()
        self._ranges = self._side_by_side(rows, copied, reached)
        if self._ranges:  # in the source's order, each range as it was before
            self._in_source_order(reached)
            return True
        with self._connection.transaction():
            self._begin(reached)
            self._end()
        return False

    def _end(self) -> None:
        super()._end()
        self._connection.execute(
            'DELETE FROM pgtide.ranges WHERE pipeline = %s AND "table" = %s'
            " AND (lsn, seq) <= (%s::pg_lsn, %s)",
            [self._pipeline, self._table, str(self._unit.high.lsn), self._unit.high.seq],
        )

    def _can_be_parted(self, reached: Position) -> bool:
        if self._unit.actions != (RowsOf(0),) or len(self._unit.tables) != 1:
            return False
        (rows,) = self._unit.tables
        ids = {shape.id for shape in rows.shapes}
        events = sum(count.rows for count in self._batch.census.counts if count.shape in ids)
        if events < RANGED_ROWS or not self._changes_are_apart(rows) or self._load.run(reached):
            return False
        return self._table_is_apart(rows)

    def _changes_are_apart(self, rows: TableRows) -> bool:
        """Whether what happens to a row has nothing to do with rows of other keys."""
        layout = rows.layout
        typed = all(layout.columns[index].type_oid in _ONE_TEXT for index in layout.keys)
        moved = rows.traits.old_rows or rows.ruled
        counted = rows.traits.unsent and self._batch.completes(layout, self._batch.census.low)
        return bool(layout.keys) and typed and not moved and not counted

    def _table_is_apart(self, rows: TableRows) -> bool:
        name = rows.rules.target
        table = read_tables(self._connection, [name]).get(name)
        if table is None or any(column.always for column in table.columns.values()):
            return False
        keys = [rows.layout.columns[index] for index in rows.layout.keys]
        if any(k.name not in table.columns for k in keys):
            return False
        same = all(table.columns[key.name].type == key.type_name for key in keys)
        return same and _rows_are_apart(self._connection, table, [key.name for key in keys])

    def _quieten(self) -> None:
        """Before the ranges begin: it takes a lock that each would wait for the others with."""
        names = [rows.rules.target for rows in self._unit.tables]
        for table in read_tables(self._connection, names).values():
            if self._settings.replication_role == "origin":
                disable_triggers(self._connection, table)

    def _side_by_side(self, rows: StagedRows, copied: Copied, reached: Position) -> list[int]:
        """Bring ranges into the table; those that have to be done in the source's order."""
        left = [number for number in range(RANGES) if number not in self._ahead]
        if not left:
            return []
        with ThreadPoolExecutor(len(left), thread_name_prefix="pgtide-range") as pool:
            done = {n: pool.submit(self._range, n, rows, copied, reached) for n in left}
        return [number for number, future in done.items() if not _succeeded(future)]

    def _range(self, number: int, rows: StagedRows, copied: Copied, reached: Position) -> None:
        url = self._settings.url.reveal()
        with closing(connect_target(url)) as connection, connection.transaction():
            self._expect(read_progress(connection, self._scope, "FOR SHARE"), reached)
            self._set_up(connection)
            copied.expect(connection)
            chosen = Chosen(copied.loads, [number])
            Applier(connection, self._batch, rows, chosen, self._settings).apply(0)
            noted = connection.execute(
                "INSERT INTO pgtide.ranges VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                [
                    *(self._pipeline, self._table, number),
                    *(str(self._unit.high.lsn), self._unit.high.seq),
                ],
            )
            if not noted.rowcount:
                raise TargetUnavailable("somebody else writes to the target")


def _succeeded(range_: Future[None]) -> bool:
    """False for rows that are not as expected, or refused; whatever else there is, raised."""
    try:
        range_.result()
    except Unexpected:
        return False
    except psycopg.Error as error:
        if not is_of_a_row(error):
            raise
        return False
    return True


def _rows_are_apart(connection: SqlConnection, table: TargetTable, keys: Sequence[str]) -> bool:
    """Whether no constraint of a table looks at two rows, but that keys are different."""
    row = connection.execute(_APART, {"table": table.oid, "keys": list(keys)}).fetchone()
    return row == (True,)
