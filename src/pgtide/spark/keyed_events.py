"""Events by key: where a move is parted in two, and where the last event of each key is chosen.

Every sink that holds a state goes through here, whatever it takes for a key: typed values of one
table in a lake (``compaction.py``), texts of several tables at once for a Postgres target. Rows of
tables without a key are told apart by all of their values, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgtide.spark.sql_text import Sql, case

AT = ("lsn", "seq", "part")
"""Orders the events of a key; of a move, part 0 leaves the old key and part 1 is at the new one."""


def is_move(old: str, new: str) -> Sql:
    """Whether an event takes a row from one key to another."""
    return Sql(f"(op = 'update' AND before IS NOT NULL AND NOT {old} <=> {new})")


def parted(
    events: DataFrame, here: Mapping[str, str], left: Mapping[str, str], moved: str | None
) -> DataFrame:
    """Every event as the columns ``here`` and ``part``; one that moved a row as two.

    ``left`` is what differs where the row was before. ``moved`` is None if no event is a move.
    """
    arrives = [*_named(here), "1 AS part"]
    if moved is None:
        return events.selectExpr(*arrives)
    leaves = [*_named({**here, **left}), "0 AS part"]
    whole = f"struct({', '.join(arrives)})"
    halves = case(moved, f"array(struct({', '.join(leaves)}), {whole})", f"array({whole})")
    return events.selectExpr(f"explode({halves}) AS e").select("e.*")


def last_of_each(
    events: DataFrame, keys: Sequence[str], row: Sequence[str], first: Sequence[str] = ()
) -> DataFrame:
    """The last event of each key: its columns ``row``, and ``first`` of the key's first event.

    Columns of ``keys`` come first: Spark sorts by the first bytes of the first one, which had
    better tell rows apart. Positions are unique, so what stands behind them is never compared.
    """
    rest = [name for name in row if name not in AT]
    found = [F.expr(f"max(struct({', '.join((*AT, *rest))})) AS newest")]
    if first:
        found.append(F.expr(f"min(struct({', '.join((*AT, *first))})) AS earliest"))
    grouped = events.groupBy(*keys).agg(*found)
    chosen = [*(f"newest.{name}" for name in row), *(f"earliest.{name}" for name in first)]
    return grouped.select(*keys, *chosen)


def counted(events: DataFrame, by: Sequence[str], newest: Sequence[str]) -> DataFrame:
    """Rows without a key: how many more there are of each, or fewer if negative, as ``copies``.

    Besides ``row``, its texts, the columns ``by`` that part equal rows, and ``newest`` of the last
    event that touched such a row. The net of what came and went again is nothing.
    """
    sides = "array(struct(after AS row, 1 AS copies), struct(before AS row, -1 AS copies))"
    kept = dict.fromkeys((*by, "lsn", "seq", *newest))
    rows = events.selectExpr(*kept, f"explode({sides}) AS e").select(*kept, "e.*")
    last = f"max(struct({', '.join(dict.fromkeys(('lsn', 'seq', *newest)))})) AS newest"
    grouped = (
        rows.filter("row IS NOT NULL")
        .groupBy(*by, "row")
        .agg(F.sum("copies").cast("int").alias("copies"), F.expr(last))
    )
    chosen = [f"newest.{name}" for name in newest]
    return grouped.filter("copies <> 0").select(*by, "row", "copies", *chosen)


def _named(columns: Mapping[str, str]) -> list[str]:
    return [f"{expression} AS {name}" for name, expression in columns.items()]
