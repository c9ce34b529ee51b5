"""Tables that begin anew in a target that has others: they must not have rows of their own."""

from __future__ import annotations

from pgtide.errors import TargetError
from pgtide.pipeline.batch import Batch
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.bookkeeping import read_progress, table_scope
from pgtide.sinks.postgres.loading import is_empty
from pgtide.sinks.postgres.target_tables import quoted_name, read_tables
from pgtide.spark.layout import Layout, TableName

_LOADS = """
SELECT "schema", "table" FROM pgtide.loads WHERE pipeline = %s OR starts_with(pipeline, %s)
"""


def refuse_rows(connection: SqlConnection, batch: Batch, scope: str) -> None:
    """Refuse to replay the log over rows of which nobody knows when they were true.

    Those that this very replay has brought, before it was interrupted, are known.
    """
    tables = _tables(batch, scope, connection)
    brought = set(connection.execute(_LOADS, [scope, table_scope(scope, "")]).fetchall())
    for name in sorted(read_tables(connection, tables - brought)):
        if is_empty(connection, name):
            continue
        shown = quoted_name(name)
        raise TargetError(
            f"{'.'.join(name)} is selected later, and has rows at the target",
            detail=f"What the log has of it would meet rows that pipeline {batch.scope.pipeline} "
            "did not note where they are from.",
            hint=f"Run at the target: DROP TABLE {shown}, if the log has its CREATE TABLE, "
            f"otherwise TRUNCATE {shown}; then: pgtide run. Or take it out of the pipeline's "
            "tables.",
        )


def _tables(batch: Batch, scope: str, connection: SqlConnection) -> set[TableName]:
    """What the tables that catch up are called at the target, without those under way."""
    layouts = (Layout.of(shape, batch.shapes) for shape in batch.shapes.values())
    names = {layout.table for layout in layouts}
    begun = Position(Lsn(0))
    return {
        batch.rules(name).target
        for name in names
        if ".".join(name) in (batch.only or ())
        and read_progress(connection, table_scope(scope, ".".join(name))) == begun
    }
