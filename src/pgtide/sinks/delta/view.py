"""Views of mirrors in Spark's catalog: the source's columns, and only rows that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from pgtide.errors import TargetError
from pgtide.sinks.delta.columns import DELETED, TargetColumn
from pgtide.sinks.delta.target import Target
from pgtide.spark.sql_text import quoted

TABLE_PROPERTY = "pgtide.table"  # the path of the mirror, quoted as in a URL
QUERY_PROPERTY = "pgtide.query"  # what it selects and of which types, quoted alike


@dataclass(frozen=True)
class View:
    """The view of one mirror; two tables may ask for the same name, which is refused."""

    target: Target
    database: str
    name: str

    def show(self, columns: Sequence[TargetColumn], *, hide_deleted: bool) -> None:
        """Have it, with these columns."""
        spark, sql = self.target.spark, f"{quoted(self.database)}.{quoted(self.name)}"
        # Rows from before soft_delete was set have no mark.
        shown = f" WHERE {DELETED} IS NOT TRUE" if hide_deleted else ""
        names = ", ".join(quoted(column.name) for column in columns)
        query = f"SELECT {names} FROM {self.target.sql}{shown}"
        types = ", ".join(column.type.simpleString() for column in columns)
        wanted = {
            TABLE_PROPERTY: quote(self.target.path),
            QUERY_PROPERTY: quote(f"{query} ({types})"),
        }
        if spark.catalog.tableExists(sql):
            rows = spark.sql(f"SHOW TBLPROPERTIES {sql}").collect()
            found = {row["key"]: row["value"] for row in rows}
            self._refuse_shared(found.get(TABLE_PROPERTY))
            # Not what Spark makes of the view: it cannot read one whose columns are gone.
            if wanted.items() <= found.items():
                return
        marks = ", ".join(f"'{name}' = '{value}'" for name, value in wanted.items())
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(self.database)}")
        spark.sql(f"CREATE OR REPLACE VIEW {sql} TBLPROPERTIES ({marks}) AS {query}")

    def _refuse_shared(self, shown: str | None) -> None:
        """Refuse to replace a view of another table that is there, or of whoever made it."""
        path = None if shown is None else unquote(shown)
        if path == self.target.path:
            return
        if path is not None and not Target(self.target.spark, path, self.target.storage).exists():
            return
        whose = "something else" if path is None else path
        raise TargetError(
            f"the view {self.database}.{self.name} shows {whose}",
            detail=f"{self.target.path} is to have a view of this name.",
            hint="Drop that view, give the table another name in routes, or leave out views.",
        )
