"""Stopped anywhere, its checkpoint lost, the log cut elsewhere: lake tables end as they should.

Operations are drawn at random: changes with and without the large value, TRUNCATEs of tables and
partitions, columns that come and go, tables that exchange names, are made anew or replaced. The
pipeline is stopped around a commit, again and again. A failure prints its seed and what happened.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.errors import TargetUnavailable
from pgtide.pipeline.reading import LogFrames
from pgtide.pipeline.running import PipelineRun
from pgtide.position import Lsn, Position
from pgtide.sinks.delta import filling, lake, lake_table, mirror_table, reached
from pgtide.sinks.delta.gone import Gone
from pgtide.sinks.delta.lake_table import LakeTable
from pgtide.sinks.delta.target import Target
from tests.fixtures.capture import Captured
from tests.sinks.lakes import lose_checkpoint

KEYS = 8  # few, so that events of one key meet
DATA = ("id", "n", "big")
STOPS = [  # where a process may die: what was committed before is there, nothing behind it is
    (LakeTable, "_step"),
    (Target, "set_properties"),
    (reached, "append"),
    (reached, "note"),
    (mirror_table, "merge"),
    (mirror_table, "fill"),
    (lake_table, "reshape"),
    (filling, "_fill_columns"),
    (lake, "move"),
    (lake, "remove"),
    (Gone, "note"),
]


def made(table: str, key: str = " PRIMARY KEY") -> list[str]:
    return [
        f"CREATE TABLE {table} (id int{key}, n int, big text)",
        f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL",
    ]


class World:
    """The tables that there are, and random statements about them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._number = 0
        self.tables = ["a", "b", "bag", "p"]
        self._added: dict[str, list[str]] = {}
        self._waiting: list[tuple[str, str]] = []  # tables that are to replace others

    def beginning(self) -> list[str]:
        parts = [
            f"CREATE TABLE p_{name} PARTITION OF p FOR VALUES FROM ({low}) TO ({high})"
            for name, low, high in (("low", 0, 4), ("high", 4, KEYS))
        ]
        large = [f"ALTER TABLE p_{name} ALTER big SET STORAGE EXTERNAL" for name in ("low", "high")]
        partitioned = "CREATE TABLE p (id int PRIMARY KEY, n int, big text) PARTITION BY RANGE (id)"
        bag = [*made("bag", key=""), "ALTER TABLE bag REPLICA IDENTITY FULL"]
        return [*made("a"), *made("b"), *bag, partitioned, *parts, *large]

    def change(self) -> str:
        rng, table = self._rng, self._rng.choice(self.tables)
        key, other, n = rng.randrange(KEYS), rng.randrange(KEYS), rng.randrange(9)
        big = rng.choice(["NULL", "'s'", f"repeat('{n}', 3000)", f"repeat('{n}', 3000)"])
        there = "" if table == "bag" else " ON CONFLICT DO NOTHING"
        free = f"NOT EXISTS (SELECT FROM {table} WHERE id = {other})"
        insert = f"INSERT INTO {table} (id, n, big) VALUES ({key}, {n}, {big}){there}"
        update = f"UPDATE {table} SET n = {n} WHERE id <= {key}"
        move = f"UPDATE {table} SET id = {other} WHERE id = {key} AND {free}"
        delete = f"DELETE FROM {table} WHERE id = {key}"
        write = f"UPDATE {table} SET big = {big} WHERE id = {key}"
        return rng.choice([*[insert] * 4, *[update] * 3, move, delete, write])

    def command(self) -> list[str]:
        rng, table = self._rng, self._rng.choice(self.tables)
        one = rng.choice(["a", "b"])
        match rng.randrange(8):
            case 0 | 1:
                return [f"TRUNCATE {table}"]
            case 2:
                return [f"TRUNCATE p_{rng.choice(['low', 'high'])}"]
            case 3:
                self._number += 1
                self._added.setdefault(table, []).append(f"x{self._number}")
                default = rng.choice(["", "DEFAULT 7"])
                return [f"ALTER TABLE {table} ADD x{self._number} int {default}"]
            case 4 if self._added.get(table):
                return [f"ALTER TABLE {table} DROP {self._added[table].pop()}"]
            case 5:
                a, b = self._added.pop("a", []), self._added.pop("b", [])
                self._added |= {"a": b, "b": a}
                names = (("a", "swap"), ("b", "a"), ("swap", "b"))
                return [f"ALTER TABLE {old} RENAME TO {new}" for old, new in names]
            case 6:
                self._added.pop(one, None)
                return [*self._drop(one), *made(one)]
            case _:
                return self._replace(one)

    def _drop(self, table: str) -> list[str]:
        """Drop a table under its name, or under another that it gets an update under."""
        if self._rng.random() < 0.5:
            return [f"DROP TABLE {table}"]
        self._number += 1
        last = f"last{self._number}"
        update = f"UPDATE {last} SET n = n + 1"
        return [f"ALTER TABLE {table} RENAME TO {last}", update, f"DROP TABLE {last}"]

    def _replace(self, table: str) -> list[str]:
        """Make a table that is to replace another, or have one do so."""
        if self._waiting and self._rng.random() < 0.5:
            fresh, table = self._waiting.pop()
            self.tables.remove(fresh)
            self._added[table] = self._added.pop(fresh, [])
            return [*self._drop(table), f"ALTER TABLE {fresh} RENAME TO {table}"]
        self._number += 1
        fresh = f"fresh{self._number}"
        self.tables.append(fresh)
        self._waiting.append((fresh, table))
        rows = f"INSERT INTO {fresh} SELECT i, i, repeat('f', 3000) FROM generate_series(0, 3) i"
        return [*made(fresh), rows]


def make_history(captured: Captured, rng: random.Random) -> tuple[list[str], list[str]]:
    """Run random transactions: the statements, and the tables that there are then."""
    world = World(rng)
    transactions = [world.beginning()]
    with captured.database.connect(autocommit=False) as connection:
        for _ in range(rng.choice([4, 8, 12])):
            statements: list[str] = []
            for _ in range(rng.choice([1, 1, 2, 4, 8])):
                statements += world.command() if rng.random() < 0.25 else [world.change()]
            transactions.append(statements)
        for statements in transactions:
            for statement in statements:
                connection.execute(statement.encode())
            connection.commit()
    return [" ; ".join(statements) for statements in transactions], world.tables


class Stopped(TargetUnavailable):
    """What a process that has died does not say."""


class Stopping:
    """Dies at some commit, and does nothing more."""

    def __init__(self, patch: pytest.MonkeyPatch, left: int) -> None:
        self._left = left
        for owner, name in STOPS:
            patch.setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, function: Any) -> Any:
        def around(*args: Any, **kwargs: Any) -> Any:
            self._count()
            result = function(*args, **kwargs)
            self._count()
            return result

        return around

    def _count(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise Stopped("stopped")


def shown(spark: SparkSession, path: str, mode: str) -> list[tuple[Any, ...]]:
    frame = spark.read.format("delta").load(path)
    if mode == "scd2":
        frame = frame.filter("is_current")
    if "_pgtide_deleted" in frame.columns:
        frame = frame.filter("NOT _pgtide_deleted")
    return [tuple(row) for row in frame.select(*DATA).collect()]


def told(spark: SparkSession, path: str) -> list[tuple[int, int]]:
    """The events that a history has."""
    frame = spark.read.format("delta").load(path)
    return [(row[0], row[1]) for row in frame.select("_pgtide_lsn", "_pgtide_seq").collect()]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mirror", "soft_delete", "history", "scd2"])
@pytest.mark.parametrize("seed", range(4))
def test_stopped_anywhere(spark: SparkSession, captured: Captured, mode: str, seed: int) -> None:
    rng = random.Random(f"{seed} {mode}")
    story, tables = make_history(captured, rng)
    captured.capture()
    places = [Position(Lsn(row["lsn"]), row["seq"]) for row in captured.rows()]
    sink: dict[str, Any] = {"type": "delta", "path": str(captured.directory / "lake")}
    sink["dropped_tables"] = "keep" if mode == "history" else rng.choice(["keep", "drop"])
    sink |= {"soft_delete": True} if mode == "soft_delete" else {"mode": mode}
    if mode == "scd2":
        tables.remove("bag")  # it has no key
    settings = {"sink": sink, "tables": ["*", "!public.bag"] if mode == "scd2" else ["*"]}
    config = Config.model_validate({**captured.settings, "pipelines": {"lake": settings}})

    def run(stop: int | None = None) -> None:
        cuts = sorted({*rng.sample(places, rng.choice([0, 1, 2, 4]))} - {places[-1]})
        story.append(f"cut at {[*map(str, cuts)]}, stopped at {stop}")
        with pytest.MonkeyPatch.context() as patch:
            last = Position.end_of(places[-1].lsn)
            patch.setattr(LogFrames, "cuts", lambda *_: [*cuts, last])
            if stop is None:
                PipelineRun(spark, config, "lake").run(until_current=True)
                return
            Stopping(patch, stop)
            with suppress(Stopped):
                PipelineRun(spark, config, "lake").run(until_current=True)
        if rng.random() < 0.7 and (captured.directory / "log" / "pipelines" / "lake").exists():
            lose_checkpoint(captured, "lake")

    def check() -> None:
        directory = captured.directory / "lake" / "public"
        if mode == "history":
            found = [at for path in directory.iterdir() for at in told(spark, str(path))]
            events = [(r["lsn"], r["seq"]) for r in captured.rows() if r["op"] != "ddl"]
            assert sorted(found) == sorted(events), (seed, story)
            return
        if sink["dropped_tables"] == "drop":
            assert {path.name for path in directory.iterdir()} == {*tables}, (seed, story)
        for table in tables:
            rows = shown(spark, str(directory / table), mode)
            wanted = captured.execute(f"SELECT {', '.join(DATA)} FROM {table}")
            assert sorted(rows, key=repr) == sorted(wanted, key=repr), (table, seed, story)

    for _ in range(rng.randrange(1, 4)):
        run(stop=rng.randrange(1, rng.choice([12, 30, 60, 120])))
    for _ in range(2):
        run()
        check()
        lose_checkpoint(captured, "lake")
