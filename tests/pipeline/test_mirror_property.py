"""Any sequence of operations, cut into any batches, leaves mirrors equal to the source.

Operations are drawn at random: inserts, updates with and without the large value, key changes,
deletes, truncates and DDL, several in a transaction, some of it rolled back. Some transactions
truncate over and over. Between them rows
are read as a refresh reads them, and tables are swept. A failure prints its seed and the
statements.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.pipeline.reading import LogFrames
from pgtide.pipeline.running import PipelineRun
from pgtide.position import Lsn, Position
from tests.fixtures.capture import Captured
from tests.fixtures.history_rows import HistoryRows

TABLES = ("a", "b", "c")
KEYS = 12  # few, so that events of one key meet

Statement = Callable[[random.Random, str, "Columns"], str]


class Columns:
    """What a table's columns are called just now."""

    def __init__(self) -> None:
        self.text = "t"
        self.added = 0
        self.present: set[str] = set()


def insert(rng: random.Random, table: str, columns: Columns) -> str:
    return (
        f"INSERT INTO {table} (id, n, {columns.text}, big) VALUES ({rng.randrange(KEYS)}, "
        f"{rng.randrange(9)}, {text(rng)}, {big(rng)}) ON CONFLICT DO NOTHING"
    )


def update(rng: random.Random, table: str, columns: Columns) -> str:
    change = rng.choice([f"n = {rng.randrange(9)}", f"{columns.text} = {text(rng)}", "n = NULL"])
    return f"UPDATE {table} SET {change} WHERE id = {rng.randrange(KEYS)}"


def update_big(rng: random.Random, table: str, columns: Columns) -> str:
    return f"UPDATE {table} SET big = {big(rng)} WHERE id = {rng.randrange(KEYS)}"


def move(rng: random.Random, table: str, columns: Columns) -> str:
    old, new = rng.randrange(KEYS), rng.randrange(KEYS)
    return (
        f"UPDATE {table} SET id = {new} WHERE id = {old} "
        f"AND NOT EXISTS (SELECT FROM {table} WHERE id = {new})"
    )


def delete(rng: random.Random, table: str, columns: Columns) -> str:
    return f"DELETE FROM {table} WHERE id = {rng.randrange(KEYS)}"


def truncate(rng: random.Random, table: str, columns: Columns) -> str:
    return f"TRUNCATE {table}"


def rename(rng: random.Random, table: str, columns: Columns) -> str:
    old, columns.text = columns.text, "u" if columns.text == "t" else "t"
    return f"ALTER TABLE {table} RENAME COLUMN {old} TO {columns.text}"


def add(rng: random.Random, table: str, columns: Columns) -> str:
    columns.added += 1
    columns.present.add(f"x{columns.added}")
    default = rng.choice(["", " DEFAULT 7", f" DEFAULT {rng.randrange(100)} NOT NULL"])
    return f"ALTER TABLE {table} ADD COLUMN x{columns.added} int{default}"


def fill(rng: random.Random, table: str, columns: Columns) -> str:
    """A value in a column that was added, if any is there still."""
    if not columns.present:
        return insert(rng, table, columns)
    column = rng.choice(sorted(columns.present))
    return f"UPDATE {table} SET {column} = {rng.randrange(99)} WHERE id < {rng.randrange(KEYS)}"


def neutral(rng: random.Random, table: str, columns: Columns) -> str:
    """DDL that leaves the columns as they are, if not always the shape."""
    statements = [
        "ALTER TABLE {} REPLICA IDENTITY DEFAULT",
        "ALTER TABLE {} REPLICA IDENTITY FULL",
        "CREATE INDEX ON {} (n)",
        "COMMENT ON TABLE {} IS 'x'",
        "ALTER TABLE {} ALTER n SET DEFAULT 1",
    ]
    return rng.choice(statements).format(table)


def drop(rng: random.Random, table: str, columns: Columns) -> str:
    column = f"x{rng.randrange(1, columns.added + 2)}"
    columns.present.discard(column)
    return f"ALTER TABLE {table} DROP COLUMN IF EXISTS {column}"


def text(rng: random.Random) -> str:
    return rng.choice(["NULL", "''", "'NULL'", "'{a,\"b\"}'", "'ü'", f"'v{rng.randrange(99)}'"])


def big(rng: random.Random) -> str:
    return rng.choice(["NULL", "'small'", f"repeat('{rng.randrange(9)}', 6000)"])


CHANGES: Sequence[Statement] = (
    [insert] * 6 + [update] * 5 + [update_big] * 2 + [move] * 3 + [delete] * 2 + [fill] * 2
)
RARE: Sequence[Statement] = [truncate, rename, add, add, drop, neutral]


def make_history(
    captured: Captured, rng: random.Random, transactions: int, refreshes: int
) -> list[str]:
    """Run random transactions; the statements, for whoever has to look into a failure."""
    log = []
    history = HistoryRows(captured)
    refreshed = {*rng.sample(range(transactions), refreshes)}
    with captured.database.connect(autocommit=False) as connection:
        for table in TABLES:
            identity = rng.choice(["DEFAULT", "DEFAULT", "FULL"])
            log += [
                f"CREATE TABLE {table} (id int PRIMARY KEY, n int, t text, big text)",
                f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL",
                f"ALTER TABLE {table} REPLICA IDENTITY {identity}",
            ]
        for statement in log:
            connection.execute(statement.encode())
        connection.commit()
        columns = {table: Columns() for table in TABLES}
        for number in range(transactions):
            log += _transaction(connection, rng, columns)
            if number in refreshed:
                log.append(_refresh(history, rng, rng.choice(TABLES)))
    return log


def _refresh(history: HistoryRows, rng: random.Random, table: str) -> str:
    """Some rows are read again, or all and the table is swept, or a part of it."""
    if rng.random() < 0.4:
        low, high = sorted(rng.sample(range(KEYS), 2))
        start = history.read(table, f"id BETWEEN {low} AND {high}")
        if rng.random() < 0.5:
            history.sweep(table, start, low=str(low), high=str(high))
        return f"-- {table}: {low} to {high} was read at {start}"
    if rng.random() < 0.3:
        # What nobody has any more, and what is not what it was.
        history.ghosts(table, *([str(key), *[None] * width(history, table)] for key in (3, 99)))
    start = history.read(table)
    history.sweep(table, start)
    return f"-- {table} was read at {start} and swept"


def width(history: HistoryRows, table: str) -> int:
    """How many columns there are besides the key, once the log knows of all DDL."""
    history.here()
    return len(history.shape(table).columns) - 1


def _transaction(
    connection: psycopg.Connection[Any], rng: random.Random, columns: dict[str, Columns]
) -> list[str]:
    log = ["BEGIN"]
    emptied = rng.sample(TABLES, 2) if rng.random() < 0.15 else ()
    for _ in range(rng.randrange(6, 12) if emptied else rng.randrange(1, 6)):
        table = rng.choice(emptied or TABLES)
        again = bool(emptied) and rng.random() < 0.4
        rare = again or rng.random() < 0.08
        if again:
            statement = f"TRUNCATE {', '.join(rng.sample(emptied, rng.choice([1, 2])))}"
        else:
            statement = rng.choice(RARE if rare else CHANGES)(rng, table, columns[table])
        connection.execute(statement.encode())
        log.append(statement)
        if not rare and rng.random() < 0.1:
            connection.execute("SAVEPOINT s")
            connection.execute(insert(rng, table, columns[table]).encode())
            connection.execute("ROLLBACK TO s")
    connection.commit()
    return [*log, "COMMIT"]


def check(
    spark: SparkSession,
    captured: Captured,
    *,
    seed: int,
    transactions: int,
    cuts: int,
    refreshes: int,
) -> None:
    rng = random.Random(seed)
    statements = make_history(captured, rng, transactions, refreshes)
    captured.capture()
    lake = captured.directory / "lake"
    pipeline = {"sink": {"type": "delta", "path": str(lake)}}
    config = Config.model_validate({**captured.settings, "pipelines": {"lake": pipeline}})
    places = [Position(Lsn(row["lsn"]), row["seq"]) for row in captured.rows()]
    last = Position.end_of(places[-1].lsn)
    chosen = sorted({*rng.sample(places, min(cuts, len(places))), last})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogFrames, "cuts", lambda *_: chosen)
        PipelineRun(spark, config, "lake").run(until_current=True)
    story = "\n".join([f"seed {seed}", *statements])
    compare(spark, captured, story)
    for table in TABLES:
        plant(spark, lake / "public" / table)
        HistoryRows(captured).replace(table)
    PipelineRun(spark, config, "lake").run(until_current=True)
    compare(spark, captured, f"{story}\nthen ghosts were planted")


def plant(spark: SparkSession, path: Path) -> None:
    """Write rows into a mirror that the source does not have, as if long ago."""
    schema = spark.read.format("delta").load(str(path)).schema
    own = {"_pgtide_lsn": 1, "_pgtide_seq": 0}
    ghosts = [{"id": key, **own} for key in (KEYS, KEYS + 1)]
    rows = [tuple(ghost.get(name) for name in schema.names) for ghost in ghosts]
    spark.createDataFrame(rows, schema).write.format("delta").mode("append").save(str(path))


def compare(spark: SparkSession, captured: Captured, story: str) -> None:
    lake = captured.directory / "lake"
    for table in TABLES:
        frame = spark.read.format("delta").load(str(lake / "public" / table))
        names = [name for name in frame.columns if not name.startswith("_pgtide_")]
        quoted = ", ".join(f'"{name}"' for name in names)
        expected = captured.execute(f"SELECT {quoted} FROM {table}")
        found = [tuple(row) for row in frame.select(*names).collect()]
        assert sorted(found, key=repr) == sorted(expected, key=repr), story
        assert set(names) == {c for (c,) in captured.execute(_COLUMNS, [table])}


_COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_name = %s"


def test_random_operations(spark: SparkSession, captured: Captured) -> None:
    check(spark, captured, seed=1, transactions=15, cuts=1, refreshes=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 10))
def test_many_random_operations(spark: SparkSession, captured: Captured, seed: int) -> None:
    check(spark, captured, seed=seed, transactions=30, cuts=5, refreshes=5)
