"""Views of mirrors in Spark's catalog: the source's columns, and only rows that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from pgtide.errors import TargetError
from pgtide.sinks.delta.columns import DELETED
from pgtide.sinks.delta.target import Target
from pgtide.spark.sql_text import quoted

TABLE_PROPERTY = "pgtide.table"  # the path of the mirror, quoted as in a URL
HIDES_PROPERTY = "pgtide.hides_deleted"


@dataclass(frozen=True)
class View:
    """The view of one mirror; two tables may ask for the same name, which is refused."""

    target: Target
    database: str
    name: str

    def show(self, columns: Sequence[str], *, hide_deleted: bool) -> None:
        """Have it, with these columns."""
        spark, sql = self.target.spark, f"{quoted(self.database)}.{quoted(self.name)}"
        wanted = {
            TABLE_PROPERTY: quote(self.target.path),
            HIDES_PROPERTY: str(hide_deleted).lower(),
        }
        if spark.catalog.tableExists(sql):
            rows = spark.sql(f"SHOW TBLPROPERTIES {sql}").collect()
            found = {row["key"]: row["value"] for row in rows}
            self._refuse_shared(found.get(TABLE_PROPERTY))
            if wanted.items() <= found.items() and spark.table(sql).columns == list(columns):
                return
        # Rows from before soft_delete was set have no mark.
        shown = f" WHERE {DELETED} IS NOT TRUE" if hide_deleted else ""
        marks = ", ".join(f"'{name}' = '{value}'" for name, value in wanted.items())
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {quoted(self.database)}")
        spark.sql(
            f"CREATE OR REPLACE VIEW {sql} TBLPROPERTIES ({marks}) AS "
            f"SELECT {', '.join(map(quoted, columns))} FROM {self.target.sql}{shown}"
        )

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
            hint="Give the table another name in routes, or leave views out of the sink.",
        )
