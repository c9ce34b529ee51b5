"""Which relations hold the rows of a table: itself, or the leaves of a partitioned one."""

from __future__ import annotations

from pgtide.config.patterns import TablePatterns
from pgtide.errors import ConfigError, TableGone
from pgtide.postgres.catalog import read_layouts, selects
from pgtide.postgres.connection import SqlConnection


def relations_of(
    conn: SqlConnection,
    table: str,
    patterns: TablePatterns,
    oid: int | None = None,
    begun: int | None = None,
) -> list[int]:
    """The oids of the relations to read, in a fixed order.

    ``oid``: the table that is meant, whatever it is called by now. If that is gone there is
    nothing to read, and the log says so itself. ``begun``: a relation of the table that was being
    read before, which finds it where nothing has its name any more.
    """
    layouts = read_layouts(conn)
    if oid is not None and (oid not in layouts or not selects(patterns, layouts[oid])):
        return []
    named = [s for s in layouts.values() if (s.name == table if oid is None else s.oid == oid)]
    if not named and begun in layouts:
        named = [layouts[layouts[begun].root_oid or begun]]
    if not named:
        raise TableGone(
            f"there is no table {table}", hint="Write it as schema.table, without quotes."
        )
    if not selects(patterns, named[0]):
        raise ConfigError(
            f"{table} is not captured", hint="Add it to source.tables, then run: pgtide init"
        )
    leaves = conn.execute(
        "SELECT relid::oid::bigint FROM pg_catalog.pg_partition_tree(%s::oid) WHERE isleaf"
        " ORDER BY 1",
        [named[0].oid],
    ).fetchall()
    return [oid for (oid,) in leaves] or [named[0].oid]
