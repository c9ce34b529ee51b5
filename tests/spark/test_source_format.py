"""The format ``pgtide``: the same frames as ``changes()``, read by Python."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import pgtide
from pgtide.position import Lsn, Position
from pgtide.shape import Column
from pgtide.spark.arrow_values import decode, holds_oids
from pgtide.spark.codecs import codec_for
from tests.fixtures.capture import Captured
from tests.spark.codec_frames import UNREPRESENTABLE, decode_all, plain

# A column of each type, and of each row the literals; the last ones are unrepresentable.
VALUES = {
    "bool": ("t", "f", None, "t"),
    "int2": ("-32768", "32767", "0", None),
    "int4": ("-2147483648", "7", None, "0"),
    "int8": ("9223372036854775807", "-9223372036854775808", None, "0"),
    "oid": ("4294967295", "0", None, "1"),
    "float4": ("0.1", "-0", "NaN", "1e-45"),
    "float8": ("5e-324", "-Infinity", None, "1e300"),
    "numeric(10,2)": ("12345678.91", "-0.5", None, "NaN"),
    "numeric(38,38)": (f"0.{'9' * 38}", "0", None, "NaN"),
    "numeric": ("1.10", "NaN", None, "Infinity"),
    "date": ("0001-01-01", "9999-12-31", None, "0044-03-15 BC"),
    "timestamp": ("0001-01-01 00:00:00", "1986-01-01 00:05:00.5", None, "infinity"),
    "timestamptz": ("1986-01-01 00:05:00+05:45", "9999-12-31 23:59:59+00", None, "-infinity"),
    "bytea": (r"\x00ff", r"\x", None, r"\xdeadbeef"),
    "text": ('é"\\\n😀', "", None, "NULL"),
    "jsonb": ('{"a": [1]}', "null", None, "1"),
    "int4[]": ("{1,NULL,-3}", "{}", None, "{{1},{2}}"),
    "text[]": (r'{"a\"b",c,NULL,"NULL",""}', "{a}", None, "[2:2]={a}"),
    "timestamptz[]": ('{"2024-01-01 00:00:00+00"}', "{NULL}", None, "{infinity}"),
    "numeric(4,1)[]": ("{1.5}", "{}", None, "{NaN}"),
    "bytea[]": (r'{"\\xdead","\\x",NULL}', "{}", None, None),
    "oid[]": ("{4294967295}", "{0}", None, None),
    "public.fair": ("1.5", "0", None, "NaN"),
    "hstore": ('"a"=>"1", "b"=>NULL, "é, "=>"=>"', '"a"=>1', None, '"q\\"k"=>""'),
}

# An enum under the name of hstore, whose extension is not everywhere, with labels as it prints.
LABELS = ", ".join(f"'{text}'" for text in VALUES["hstore"] if text)
BEGIN = f"""CREATE TYPE hstore AS ENUM ({LABELS});
CREATE DOMAIN public.fair AS numeric(10,2);
CREATE TABLE old (id int PRIMARY KEY, other text);
INSERT INTO old VALUES (1, 'of a table that is gone');
ALTER TABLE old RENAME TO every;
DROP TABLE every;
"""

HISTORY = """ALTER TABLE every ALTER big SET STORAGE EXTERNAL;
UPDATE every SET big = repeat('x', 9000) WHERE id = 1;
UPDATE every SET c1 = 5 WHERE id = 1;
ALTER TABLE every RENAME COLUMN gone TO going;
ALTER TABLE every ADD COLUMN note text DEFAULT 'a "quoted", note';
UPDATE every SET id = 20 WHERE id = 2;
ALTER TABLE every DROP COLUMN going;
ALTER TABLE every ADD COLUMN later int;
UPDATE every SET c1 = 6, later = 1 WHERE id = 1;
DELETE FROM every WHERE id = 3;
CREATE TABLE other (id int);
INSERT INTO other VALUES (1);
TRUNCATE every;
"""


@pytest.fixture
def every(captured: Captured) -> Captured:
    """A log with a table of every type that has changed its columns."""
    captured.run(BEGIN)
    columns = ", ".join(f"c{n} {name}" for n, name in enumerate(VALUES))
    captured.execute(f"CREATE TABLE every (id int PRIMARY KEY, gone int, big text, {columns})")
    casts = ", ".join(f"%s::text::{name}" for name in VALUES)
    for n, row in enumerate(zip(*VALUES.values(), strict=True), start=1):
        captured.execute(f"INSERT INTO every VALUES ({n}, 1, 'b', {casts})", row)
    captured.run(HISTORY)
    captured.capture()
    return captured


def options(log: Captured, **more: str) -> dict[str, str]:
    return {"log": str(log.config.log.path), "table": "public.every", **more}


def exact(frame: DataFrame) -> list[str]:
    """Rows in order, in a form that compares exactly: type, sign of zero and NaN included."""
    return [repr(row) for row in ordered(frame)]


def ordered(frame: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return sorted(rows, key=lambda row: (row["lsn"], row["seq"]))


def test_same_as_changes(spark: SparkSession, every: Captured) -> None:
    log = every.config.log.path
    source = spark.read.format("pgtide")
    found = source.options(**options(every, on_unrepresentable="null")).load()
    expected = pgtide.changes(spark, log, "every", on_unrepresentable="null")
    assert found.schema.simpleString() == expected.schema.simpleString()
    assert exact(found) == exact(expected)
    rows = ordered(found)
    ops = ["insert"] * 4 + ["update"] * 4 + ["delete", "truncate"]
    assert [row["op"] for row in rows] == ops
    assert [row["unchanged"] for row in rows if row["unchanged"]] == [["big"], ["big"]]

    as_text = spark.read.format("pgtide").options(**options(every, on_unrepresentable="text"))
    expected = pgtide.changes(spark, log, "every", on_unrepresentable="text")
    assert exact(as_text.load()) == exact(expected)

    # Rows that came after the frame was made are not in it, whatever their columns are.
    every.run("ALTER TABLE every ADD COLUMN new int;\nINSERT INTO every (id) VALUES (50);\n")
    every.capture()
    assert len(ordered(found)) == len(rows)


def test_streams_go_on_and_refuse_other_columns(
    spark: SparkSession, every: Captured, tmp_path: Path
) -> None:
    got: list[dict[str, Any]] = []

    def load() -> DataFrame:
        given = options(every, on_unrepresentable="null")
        return spark.readStream.format("pgtide").options(**given).load()

    def run(frame: DataFrame) -> int:
        before = len(got)
        query = (
            frame.writeStream.foreachBatch(lambda rows, _: got.extend(ordered(rows)))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return len(got) - before

    frame = load()
    first = run(frame)
    assert first > 0
    every.run("INSERT INTO every (id) VALUES (30), (31);\n")
    every.capture()
    assert run(frame) == 2
    assert run(frame) == 0
    every.run("DROP TABLE every;\nCREATE TABLE every (id int PRIMARY KEY, new text);\n")
    every.run("INSERT INTO every VALUES (1, 'of another table');\n")
    every.capture()
    with pytest.raises(StreamingQueryException, match="Start the query again"):
        run(frame)
    assert run(load()) == 1
    assert got[-1]["after"] == {"id": 1, "new": "of another table"}

    expected = pgtide.changes(spark, every.config.log.path, "every", on_unrepresentable="null")
    assert [(r["lsn"], r["seq"]) for r in got] == [(r["lsn"], r["seq"]) for r in ordered(expected)]


def test_what_cannot_be_read_is_refused(spark: SparkSession, every: Captured) -> None:
    def refused(given: dict[str, str]) -> str:
        with pytest.raises(PySparkException) as caught:
            spark.read.format("pgtide").options(**given).load().collect()
        return str(caught.value)

    assert "needs the option table" in refused({"log": "x"})
    assert "has no option tabel" in refused({"log": "x", "tabel": "t"})
    assert "Use one of fail, null, text" in refused(options(every, on_unrepresentable="skip"))
    unknown = refused(options(every) | {"table": "nothing"})
    assert "knows no table nothing" in unknown
    assert "Hint: See which it knows: pgtide log show" in unknown
    message = refused(options(every))
    found = re.search(r"unrepresentable value in public\.every\.c7 at (\S+)", message)
    assert found is not None
    assert Position(Lsn(1)) < Position.parse(found[1]) < every.log.end
    assert "Set the option on_unrepresentable" in message
    assert "NaN" not in message

    given = options(every, **{"storage.aws_secret_access_key": "hush", "storage.endpoint": "shh"})
    frame = spark.read.format("pgtide").options(**given).load()
    plan = frame._jdf.queryExecution().toString()
    assert "hush" not in plan
    assert "shh" not in plan


def test_any_text_has_the_value_that_its_codec_gives(spark: SparkSession) -> None:
    chance = random.Random(7)
    columns = [Column("c", oid) for oid in (16, 21, 23, 20, 26, 700, 701, 1082, 1114, 1184, 17)]
    columns += [Column("n", 1700, 655366), Column("n", 1700, (38 << 16) + 38 + 4)]
    columns += [Column("a", oid) for oid in (1007, 1009, 1001, 1022, 1028, 1182)]
    columns += [Column("h", 17000, type_name="public.hstore")]
    printed = [text for texts in VALUES.values() for text in texts if text is not None]
    printed += ["2024-02-30", "2024-01-01 23:59:60", "2024-01-01 24:00:00+00", "0000-01-01"]
    printed += ["9" * 38 + "." + "9" * 38, "1" * 400, "1e+400", "1e-400", "3.5e+38", "1e-50"]
    printed += ["9223372036854775808", "2147483648", "32768", "{4294967296}", "{99999999999}"]
    printed += ["1.7976931348623157e+308", "1.17549435e-38", "0e+0", "00", "0.0", "{٣}", "٣"]
    printed += ['"a"=>"1", "a"=>"2"', '{"\\\\x0"}', "{a b}", "{\u2003}", "{nUll}", "1." + "5" * 38]
    texts = [*printed, *(_tampered(chance, text) for text in printed * 3), None]
    found = decode_all(spark, [(column, texts) for column in columns])
    for column, expected in zip(columns, found, strict=True):
        spark_type = codec_for(column).spark_type
        values = decode(pa.array(texts, pa.string()), spark_type, oid=holds_oids(column))
        if pa.types.is_timestamp(values.type) and values.type.tz:
            values = values.cast(pa.int64())
        for text, value, codecs in zip(texts, values.to_pylist(), expected, strict=True):
            if isinstance(codecs, dict):
                value = None if value is None else dict(value)
            outcome = UNREPRESENTABLE if value is None and text is not None else plain(value)
            assert (column.type_oid, text, outcome) == (column.type_oid, text, codecs)


def _tampered(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text) + 1)
    inserted: str = chance.choice(["", *'0123456789+-eE.: \n\tdfxNaTZ{}",\\BCnulUL=>_é\u0660'])
    return text[:at] + inserted + text[at + chance.randrange(2) :]
