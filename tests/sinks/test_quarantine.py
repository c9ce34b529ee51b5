"""What a type cannot hold is NULL in the lake, and its text in the quarantine, once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.sinks.delta.quarantine import COLUMNS
from pgtide.sinks.delta.target import Target
from tests.fixtures.capture import Captured
from tests.sinks.lakes import deliver, lose_checkpoint, table

SCRIPT = """CREATE TABLE t (day date PRIMARY KEY, till date, secret date, gone date, tenant int);
ALTER TABLE t REPLICA IDENTITY FULL;
CREATE TABLE bag (day date);
INSERT INTO t VALUES ('2024-02-29', 'infinity', 'infinity', '-infinity', 1);
INSERT INTO t VALUES ('2024-03-01', 'infinity', 'infinity', '-infinity', 2);
UPDATE t SET till = '-infinity';
INSERT INTO t (day, tenant) VALUES ('infinity', 1), ('-infinity', 1);
INSERT INTO bag VALUES ('infinity'), ('2024-02-29');
DELETE FROM t WHERE day = 'infinity';
"""
RULES = [
    {"table": "public.t", "transform": {"column": "secret", "null": True}},
    {"table": "public.t", "exclude": ["gone"]},
    {"table": "public.t", "filter": {"column": "tenant", "operator": "eq", "value": 1}},
]
KEY = '{"day":"2024-02-29"}'
LAST = ("t", "till", KEY, "-infinity")
EVERY = [("t", "till", KEY, "-infinity"), ("t", "till", KEY, "infinity")]
BAG = ("bag", "day", None, "infinity")
KEYS = [("t", "day", f'{{"day":"{day}"}}', day) for day in ("-infinity", "infinity")]

DELETED = KEYS[1]  # again: the delete is an event of its own


def test_two_tables_begin_it(spark: SparkSession, tmp_path: Path) -> None:
    """Tables are written side by side: none may find half of it, or make it over."""
    target = Target(spark, str(tmp_path / "quarantine"), {})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: target.ensure(COLUMNS), range(8)))
    assert target.frame().columns == [column.name for column in COLUMNS]
    assert len(list(tmp_path.glob("quarantine/_delta_log/*.json"))) == 1


@pytest.mark.parametrize(
    ("mode", "tables", "expected"),
    [
        ("mirror", ["public.*"], [BAG, LAST, *KEYS]),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("history", ["public.*"], [BAG, *EVERY, *KEYS, DELETED]),
                ("scd2", ["public.t"], [*EVERY, *KEYS]),
                ("pivot", ["public.t"], [*EVERY, *KEYS, DELETED]),
            )
        ),
    ],
)
def test_each_value_once(
    spark: SparkSession, captured: Captured, mode: str, tables: list[str], expected: list[Any]
) -> None:
    """Not what rules hide, nor what is written as text; and not again with a new checkpoint."""
    captured.run(SCRIPT)
    settings: dict[str, Any] = {"tables": tables, "rules": RULES, "on_unrepresentable": "null"}
    if mode == "pivot":
        settings["pivot"] = {"updated": "till"}
    for _ in range(2):
        deliver(spark, captured, mode, **settings)
        lose_checkpoint(captured, mode)
    path = captured.directory / mode / "_pgtide" / "quarantine"
    found = []
    if path.exists():
        kept = spark.read.format("delta").load(str(path))
        found = [tuple(row) for row in kept.select("table", "column", "key", "text").collect()]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    written = table(spark, captured, mode, "t")
    assert written.count() > 0
    if mode in ("mirror", "scd2"):
        assert written.filter("day IS NULL").count() == 0, "such keys are not one key"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mirror", "history", "scd2", "parquet"])
def test_texts_instead(spark: SparkSession, captured: Captured, mode: str) -> None:
    """Under ``on_unrepresentable: text`` a type that may not hold its values is text throughout."""
    captured.run(
        """CREATE TABLE t (day date PRIMARY KEY, at timestamptz, n numeric(6,2), f float8, a int[]);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES ('20000-01-01', '-infinity', 'NaN', 'NaN', '{{1,2},{3,4}}');
INSERT INTO t VALUES ('2024-02-29', '2024-02-29 12:00Z', 1.5, 0.1, '{7}');
"""
    )
    settings: dict[str, Any] = {"on_unrepresentable": "text"}
    if mode == "parquet":
        path = str(captured.directory / mode)
        settings["sink"] = {"type": "file", "path": path, "format": mode}
    deliver(spark, captured, mode, **settings)
    place = captured.directory / mode / "public" / "t"
    if mode == "parquet":
        reader = spark.read.option("recursiveFileLookup", True).option("mergeSchema", True)
        found = reader.parquet(str(place))
        found = found.filter("op = 'insert'").select("after.*")
    else:
        found = table(spark, captured, mode, "t")
    rows = found.select("day", "at", "n", "f", "a").orderBy("day").collect()
    assert [tuple(map(str, row)) for row in rows] == [
        ("20000-01-01", "-infinity", "NaN", "nan", "{{1,2},{3,4}}"),
        ("2024-02-29", "2024-02-29 12:00:00+00", "1.50", "0.1", "{7}"),
    ]
    assert not (captured.directory / mode / "_pgtide" / "quarantine").exists()


@pytest.mark.slow
def test_a_pivot_by_other_columns(spark: SparkSession, captured: Captured) -> None:
    """The quarantine has the key of the table, be it that the pivot rows have another one."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY, code text, made timestamp);\n")
    captured.run("INSERT INTO t VALUES (1, 'a', 'infinity');\n")
    pivot = {"key": ["code"], "created": "made"}
    deliver(spark, captured, "pivot", pivot=pivot, on_unrepresentable="null")
    path = captured.directory / "pivot" / "_pgtide" / "quarantine"
    (kept,) = spark.read.format("delta").load(str(path)).select("column", "key", "text").collect()
    assert tuple(kept) == ("made", '{"id":"1"}', "infinity")


@pytest.mark.slow
def test_columns_change_under_a_filter(spark: SparkSession, captured: Captured) -> None:
    """Rows of other shapes in a batch are no rows that do not fit theirs."""
    captured.run("CREATE TABLE a (id int PRIMARY KEY, v text, w date);")
    captured.run("INSERT INTO a VALUES (1, '1', 'infinity'), (2, 'bad', NULL), (3, '3', NULL);")
    captured.execute(
        "UPDATE a SET v = '2' WHERE id = 2; ALTER TABLE a RENAME COLUMN w TO w2; "
        "ALTER TABLE a ADD z int DEFAULT 9; DELETE FROM a WHERE id = 3; "
        "INSERT INTO a VALUES (4, '4', '-infinity', 1);"
    )
    rules = [{"table": "a", "filter": {"sql": "try_cast(v as int) > 0"}}]
    deliver(spark, captured, "mirror", rules=rules, on_unrepresentable="null")
    found = table(spark, captured, "mirror", "a").select("id", "v", "w2", "z").collect()
    assert sorted(tuple(row) for row in found) == [
        (1, "1", None, 9),
        (2, "2", None, 9),
        (4, "4", None, 1),
    ]
