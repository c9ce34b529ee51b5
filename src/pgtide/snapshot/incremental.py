"""``snapshot: incremental``: streaming begins at once, and what is there comes as refreshes.

No long transaction, no snapshot that is held, and after a crash it goes on chunk by chunk.
"""

from __future__ import annotations

from pgtide.config.patterns import TablePatterns
from pgtide.errors import ConfigError
from pgtide.log.refreshes import Refresh, RefreshStore
from pgtide.postgres.catalog import read_layouts
from pgtide.postgres.connection import SqlConnection
from pgtide.shape import Shape


def request_everything(conn: SqlConnection, patterns: TablePatterns, store: RefreshStore) -> None:
    """Ask for every captured table; may be done again after a crash."""
    tables = captured_tables(conn, patterns)
    if without_key := sorted(shape.name for shape in tables if not shape.keys):
        raise ConfigError(
            "tables without a key cannot be read bit by bit",
            detail=f"snapshot: incremental tells rows apart by their key; these have none: "
            f"{', '.join(without_key)}.",
            hint="Give them a primary key, leave them out of source.tables, or set "
            "source.snapshot: initial.",
        )
    for shape in tables:
        id = f"snapshot-{shape.oid}"
        store.add(Refresh(shape.name, id=id, oid=shape.oid, reason="snapshot"))


def captured_tables(conn: SqlConnection, patterns: TablePatterns) -> list[Shape]:
    """The captured tables; partitions come with the table that they are of, if that is captured."""
    layouts = read_layouts(conn, patterns)
    return [
        shape
        for shape in layouts.values()
        if not shape.root_oid or not patterns.matches(shape.root_schema, shape.root_table)
    ]
