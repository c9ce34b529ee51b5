"""Every built-in type and its edge values, from Postgres's own text output."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgtide.postgres.catalog import read_layouts
from pgtide.postgres.connection import connect
from pgtide.shape import Column
from pgtide.spark.codecs import TEXT, codec_for
from tests.fixtures.databases import Database
from tests.spark.codec_frames import UNREPRESENTABLE, decode_all, plain

pytestmark = pytest.mark.compiled

BAD = UNREPRESENTABLE
TYPES_PAGE = Path(__file__).parents[2] / "docs" / "TYPES.md"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(*parts: int) -> int:
    return (datetime(*parts, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)  # type: ignore[misc,arg-type]


def same(*texts: str) -> dict[str, Any]:
    """Literals that Postgres prints as they are and that stay text."""
    return dict(zip(texts, texts, strict=True))


# type: (Spark type, {literal: value})
ROUND_TRIPS: dict[str, tuple[str, dict[str, Any]]] = {
    "boolean": ("boolean", {"t": True, "f": False}),
    "int2": ("smallint", {"-32768": -32768, "0": 0, "32767": 32767}),
    "int4": ("int", {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    "int8": ("bigint", {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1}),
    "oid": ("bigint", {"0": 0, "4294967295": 2**32 - 1}),
    "float4": (
        "float",
        # 0.1 as the nearest float4, which Python shows as a double
        {"0.1": 0.10000000149011612, "NaN": float("nan"), "-Infinity": float("-inf"), "-0": -0.0}
        | {"3.4028235e38": 3.4028234663852886e38, "1e-45": 1.401298464324817e-45},
    ),
    "float8": (
        "double",
        {"0.1": 0.1, "-0": -0.0, "NaN": float("nan"), "Infinity": float("inf"), "1e15": 1e15}
        | {"1.7976931348623157e308": 1.7976931348623157e308, "5e-324": 5e-324, "123456": 123456.0}
        | {"-1.5": -1.5, "-Infinity": float("-inf")},
    ),
    "numeric(10,2)": (
        "decimal(10,2)",
        {"12345678.91": Decimal("12345678.91"), "-0.5": Decimal("-0.50"), "0": Decimal("0.00")}
        | {"NaN": BAD},
    ),
    "numeric(2,4)": ("decimal(4,4)", {"0.0099": Decimal("0.0099"), "-0.0001": Decimal("-0.0001")}),
    "numeric(3,-2)": ("decimal(5,0)", {"99900": Decimal(99900), "-51": Decimal(-100)}),
    "numeric(38,38)": ("decimal(38,38)", {f"0.{'9' * 38}": Decimal(f"0.{'9' * 38}")}),
    "numeric(38,0)": ("decimal(38,0)", {"-" + "9" * 38: Decimal("-" + "9" * 38)}),
    "numeric(39,0)": ("string", same("9" * 39, "NaN")),
    "numeric(40,39)": ("string", {"1.5": "1.5" + "0" * 38}),
    "numeric": ("string", same("1.10", "NaN", "Infinity", "-Infinity", "9" * 200)),
    "date": (
        "date",
        {"0001-01-01": date(1, 1, 1), "9999-12-31": date(9999, 12, 31)}
        | {"2024-02-29": date(2024, 2, 29), "1582-10-10": date(1582, 10, 10)}
        | {"0044-03-15 BC": BAD, "10000-01-01": BAD, "infinity": BAD, "-infinity": BAD},
    ),
    "timestamp": (
        "timestamp_ntz",
        {"0001-01-01 00:00:00": datetime(1, 1, 1), "1969-12-31 23:59:59.999999":
         datetime(1969, 12, 31, 23, 59, 59, 999999)}
        # There is no such time in many zones, among them that of the session.
        | {"1986-01-01 00:05:00": datetime(1986, 1, 1, 0, 5)}
        | {"9999-12-31 23:59:59.9": datetime(9999, 12, 31, 23, 59, 59, 900000)}
        | {"0044-03-15 12:00:00 BC": BAD, "infinity": BAD, "294276-12-31 23:59:59": BAD},
    ),
    "timestamptz": (
        "timestamp",
        {"0001-01-01 00:00:00+00": micros(1, 1, 1), "1900-01-01 00:00:00.5+00":
         micros(1900, 1, 1, 0, 0, 0, 500000)}
        | {"1986-01-01 00:05:00+05:45": micros(1985, 12, 31, 18, 20)}
        | {"9999-12-31 23:59:59.999999+00": micros(9999, 12, 31, 23, 59, 59, 999999)}
        | {"0044-03-15 12:00:00+00 BC": BAD, "-infinity": BAD, "294276-12-31 23:59:59+00": BAD},
    ),
    "bytea": ("binary", {r"\x": b"", r"\xdeadbeef": b"\xde\xad\xbe\xef", r"\x00ff": b"\x00\xff"}),
    "text": ("string", same("", " a ", "NULL", 'é"\\\n\t😀', "{1}")),
    "varchar(5)": ("string", same("abc")),
    "char(4)": ("string", {"ab": "ab  "}),
    "name": ("string", same("a")),
    '"char"': ("string", same("x")),
    "uuid": ("string", same("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    "json": ("string", same('{"a": 1, "a": 123456789012345678901234567890}')),
    "jsonb": ("string", same('{"a": 123456789012345678901234567890.10}')),
    "jsonpath": ("string", same('$."a"')),
    "interval": ("string", same("1 year 2 mons -3 days +04:05:06.7")),
    "time": ("string", same("24:00:00", "12:34:56.789")),
    "timetz": ("string", same("12:00:00+05:45")),
    "money": ("string", same("-$1,234.50")),
    "bit(3)": ("string", same("101")),
    "varbit": ("string", same("", "10")),
    "inet": ("string", same("192.168.0.1/24", "::1")),
    "cidr": ("string", same("10.0.0.0/8")),
    "macaddr": ("string", same("08:00:2b:01:02:03")),
    "macaddr8": ("string", same("08:00:2b:01:02:03:04:05")),
    "point": ("string", same("(1,2)")),
    "line": ("string", same("{1,2,3}")),
    "lseg": ("string", same("[(1,2),(3,4)]")),
    "box": ("string", same("(3,4),(1,2)")),
    "path": ("string", same("((1,2),(3,4))")),
    "polygon": ("string", same("((1,2),(3,4))")),
    "circle": ("string", same("<(1,2),3>")),
    "int4range": ("string", same("[1,5)", "empty")),
    "int8range": ("string", same("[1,)")),
    "numrange": ("string", same("(1.50,2.0]")),
    "daterange": ("string", same("[2024-01-01,infinity)")),
    "tsrange": ("string", same('["2024-01-01 00:00:00","2024-01-02 00:00:00")')),
    "tstzrange": ("string", same('(,"2024-01-02 00:00:00+00"]')),
    "int4multirange": ("string", same("{[1,5),[7,9)}", "{}")),
    "int8multirange": ("string", same("{[1,)}")),
    "nummultirange": ("string", same("{(1.50,2.0]}")),
    "datemultirange": ("string", same("{[2024-01-01,2024-01-02)}")),
    "tsmultirange": ("string", same('{["2024-01-01 00:00:00","2024-01-02 00:00:00")}')),
    "tstzmultirange": ("string", same('{(,"2024-01-02 00:00:00+00"]}')),
    "tsvector": ("string", same("'a':1 'b'")),
    "tsquery": ("string", same("'a' & 'b'")),
    "pg_lsn": ("string", same("16/B374D848")),
    "xid": ("string", same("4294967295")),
    "xid8": ("string", same("18446744073709551615")),
    "cid": ("string", same("7")),
    "tid": ("string", same("(1,2)")),
    "regclass": ("string", same("pg_class")),
    "regtype": ("string", same("integer")),
    "regproc": ("string", same("now")),
    "regprocedure": ("string", same("now()")),
    "regoper": ("string", same("||/")),
    "regoperator": ("string", same("||/(NONE,double precision)")),
    "regrole": ("string", same("pg_monitor")),
    "regnamespace": ("string", same("pg_catalog")),
    "regconfig": ("string", same("simple")),
    "regdictionary": ("string", same("simple")),
    "regcollation": ("string", same('"C"')),
    "refcursor": ("string", same("a cursor")),
    "aclitem": ("string", same("pg_monitor=r/pg_monitor")),
    "int2vector": ("string", same("1 2 3")),
    "oidvector": ("string", same("1 2")),
    "txid_snapshot": ("string", same("10:20:10,14")),
    "pg_snapshot": ("string", same("10:20:10,14")),
    "int4[]": (
        "array<int>",
        {"{}": [], "{1,NULL,-3}": [1, None, -3], "{{1,2},{3,4}}": BAD, "[0:1]={1,2}": BAD}
        | {"{NULL}": [None]},
    ),
    "text[]": (
        "array<string>",
        {'{a,"b c",NULL,"NULL","",null}': ["a", "b c", None, "NULL", "", None]}
        | {r'{"a\"b","c\\d","{x}","p,q","é😀"}': ['a"b', "c\\d", "{x}", "p,q", "é😀"]}
        | {'{"line\nfeed","tab\there"," ","$1","\\\\\\""}':
           ["line\nfeed", "tab\there", " ", "$1", '\\"']}
        | {"{{a},{b}}": BAD, "[2:2]={a}": BAD, '{"NuLL",nullx}': ["NuLL", "nullx"]},
    ),
    "bool[]": ("array<boolean>", {"{t,f,NULL}": [True, False, None]}),
    "numeric(4,1)[]": ("array<decimal(4,1)>", {"{1.5,NULL}": [Decimal("1.5"), None], "{NaN}": BAD}),
    "numeric[]": ("array<string>", {"{1.50,NaN}": ["1.50", "NaN"]}),
    "float8[]": ("array<double>", {"{NaN,-0,1e300}": [float("nan"), -0.0, 1e300]}),
    "date[]": ("array<date>", {"{2024-02-29}": [date(2024, 2, 29)], "{infinity}": BAD}),
    "timestamp[]": ("array<timestamp_ntz>", {'{"2024-01-01 00:00:00"}': [datetime(2024, 1, 1)]}),
    "timestamptz[]": ("array<timestamp>", {'{"2024-01-01 00:00:00+00"}': [micros(2024, 1, 1)]}),
    "bytea[]": ("array<binary>", {r'{"\\xdead","\\x"}': [b"\xde\xad", b""]}),
    "uuid[]": ("array<string>", {"{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}":
                                 ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]}),
    "jsonb[]": ("array<string>", {r'{"{\"a\": 1}"}': ['{"a": 1}']}),
    "box[]": ("string", same("{(3,4),(1,2);(5,6),(0,0)}")),
    "point[]": ("array<string>", {'{"(1,2)"}': ["(1,2)"]}),
    # Made by the test.
    "public.mood": ("string", same("so so")),
    "public.mood[]": ("array<string>", {'{"so so",ok}': ["so so", "ok"]}),
    "public.pair": ("string", same('(1,"a b")')),
    "public.pair[]": ("array<string>", {r'{"(1,\"a b\")"}': ['(1,"a b")']}),
    "public.fair": ("decimal(10,2)", {"1.5": Decimal("1.50"), "NaN": BAD}),
    "public.tags": ("array<string>", {"{a,b}": ["a", "b"]}),
    "public.fair[]": ("array<string>", {"{1.5}": ["1.50"]}),
    "public.tags[]": ("array<string>", {'{"{a,b}"}': ["{a,b}"]}),
}  # fmt: skip

NO_VALUES = {
    "xml",  # read only by servers that are built for it
    "gtsvector",
    "pg_node_tree",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
}
"""Types of which no value can be written down."""

MADE = """
CREATE TYPE public.mood AS ENUM ('ok', 'so so'); CREATE TYPE public.pair AS (a int, b text);
CREATE DOMAIN public.price AS numeric(10,2); CREATE DOMAIN public.fair AS public.price;
CREATE DOMAIN public.tags AS varchar(8)[];
"""


@pytest.fixture
def source(database: Database) -> Database:
    database.execute(MADE)
    return database


def printed(database: Database) -> list[tuple[Column, list[str]]]:
    """Each type's column as the catalog has it, and its literals as Postgres prints them."""
    columns = ", ".join(f"c{n} {name}" for n, name in enumerate(ROUND_TRIPS))
    database.execute(f"CREATE TABLE public.every ({columns})")
    with connect(database.url) as conn:
        (layout,) = read_layouts(conn).values()
        return [
            (column, [_printed(conn, name, literal) for literal in values])
            for column, (name, (_, values)) in zip(layout.columns, ROUND_TRIPS.items(), strict=True)
        ]


def _printed(conn: psycopg.Connection[Any], type_name: str, literal: str) -> str:
    # format() prints as the protocol does; a cast to text does not (boolean, char(n)).
    query = f"SELECT format('%%s', (%s::text)::{type_name})"
    row = conn.execute(query.encode(), [literal]).fetchone()
    assert row is not None
    return str(row[0])


def test_every_type_and_its_edge_values(spark: SparkSession, source: Database) -> None:
    cases = printed(source)
    found = decode_all(spark, cases)
    for (column, texts), (name, (spark_type, values)), outcomes in zip(
        cases, ROUND_TRIPS.items(), found, strict=True
    ):
        assert codec_for(column).spark_type.simpleString() == spark_type, name
        for text, expected, outcome in zip(texts, values.values(), outcomes, strict=True):
            assert (name, text, outcome) == (name, text, plain(expected))


def test_other_zone_no_ansi_no_codegen(spark: SparkSession, source: Database) -> None:
    cases = [case for case in printed(source) if codec_for(case[0]) is not TEXT]
    expected = decode_all(spark, cases)
    other = spark.newSession()
    other.conf.set("spark.sql.codegen.wholeStage", "false")
    other.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    other.conf.set("spark.sql.ansi.enabled", "false")
    other.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    assert decode_all(other, cases) == expected


@pytest.mark.parametrize(
    "setting",
    [
        ("spark.sql.parser.escapedStringLiterals", "true"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
        ("spark.sql.legacy.timeParserPolicy", "LEGACY"),
        ("spark.sql.caseSensitive", "true"),
    ],
    ids=lambda setting: setting[0],
)
def test_settings_of_others(
    spark: SparkSession, source: Database, setting: tuple[str, str]
) -> None:
    cases = [case for case in printed(source) if codec_for(case[0]) is not TEXT]
    expected = decode_all(spark, cases)
    other = spark.newSession()
    other.conf.set(*setting)
    assert decode_all(other, cases) == expected


NAIVE = [
    # type, text, what a bare cast makes of it
    (1082, "0044-03-15 BC", "cast(t as date) = date'0044-03-15'"),
    (1082, "2024", "cast(t as date) = date'2024-01-01'"),
    (1082, " 2024-01-01", "cast(t as date) = date'2024-01-01'"),
    (1082, "0000-01-01", "cast(t as date) is not null"),
    (17, "\\xdead", "cast(t as binary) = cast('\\\\xdead' as binary)"),
    (17, "\\xabc", "unhex(substr(t, 3)) = X'0ABC'"),
    (23, " 12 ", "cast(t as int) = 12"),
    (23, "+12", "cast(t as int) = 12"),
    (23, "012", "cast(t as int) = 12"),
    (701, "1d", "cast(t as double) = 1"),
    (701, "1e400", "cast(t as double) = double('Infinity')"),
    (701, "1e-400", "cast(t as double) = 0"),
    (701, "0.5\n", "cast(t as double) = 0.5"),
    (1114, "2024", "cast(t as timestamp_ntz) is not null"),
    (1114, "2024-01-01 00:00:00.1234567", "cast(t as timestamp_ntz) is not null"),
    (1184, "2024-01-01 00:00:00", "cast(t as timestamp) is not null"),
    (16, "yes", "cast(t as boolean)"),
]


def test_where_a_bare_cast_is_wrong(spark: SparkSession) -> None:
    """Each text is accepted by Spark and must not be by us (but for bytea's true value)."""
    outcomes = decode_all(spark, [(Column("c", oid), [text]) for oid, text, _ in NAIVE])
    names = [f"t{n}" for n in range(len(NAIVE))]
    frame = spark.createDataFrame([tuple(text for _, text, _ in NAIVE)], names)
    checks = [
        F.expr(re.sub(r"\bt\b", name, check))
        for name, (_, _, check) in zip(names, NAIVE, strict=True)
    ]
    assert [NAIVE[n] for n, ok in enumerate(frame.select(*checks).collect()[0]) if not ok] == []
    for (_, text, _), (outcome,) in zip(NAIVE, outcomes, strict=True):
        assert (text, outcome) == (text, b"\xde\xad" if text == "\\xdead" else UNREPRESENTABLE)
    # numeric(10,2): digits that the type does not have are not rounded away
    (rounded,) = decode_all(spark, [(Column("n", 1700, 655366), ["1.005", "1e2", " 1.5", "1.50"])])
    assert rounded == [UNREPRESENTABLE] * 3 + [Decimal("1.50")]


def test_hstore(spark: SparkSession) -> None:
    column = Column("h", 17000, type_name="public.hstore")
    texts = {
        "": {},
        '"a"=>"1", "b"=>NULL, "c"=>""': {"a": "1", "b": None, "c": ""},
        '"NULL"=>"NULL"': {"NULL": "NULL"},
        r'"q\"k"=>"\\x", "é, "=>"=>"': {'q"k': "\\x", "é, ": "=>"},
        '"a"=>"1", "a"=>"2"': UNREPRESENTABLE,
        '"a"=>1': UNREPRESENTABLE,
        '"a"=>"1","b"=>"2"': UNREPRESENTABLE,
        '{"a"}': UNREPRESENTABLE,
    }  # fmt: skip
    arrays = Column("h", 17001, type_name="public.hstore[]", element_oid=17000)
    assert codec_for(arrays).spark_type.simpleString() == "array<map<string,string>>"
    (found,) = decode_all(spark, [(column, list(texts))])
    assert found == list(texts.values())


def test_a_long_value_does_not_overflow_the_stack(spark: SparkSession) -> None:
    long = "x\\y" * 300_000
    text = '{"' + long.replace("\\", "\\\\") + '",' + ",".join(["z"] * 50_000) + "}"
    ((found,),) = decode_all(spark, [(Column("a", 1009), [text])])
    assert (found[0] == long, len(found)) == (True, 50_001)


def test_logs_without_facts_know_built_in_arrays() -> None:
    assert codec_for(Column("a", 1007)).spark_type.simpleString() == "array<int>"
    assert codec_for(Column("d", 16500, type_name="public.fair")) is TEXT


def test_every_built_in_type_is_on_the_page_and_tried(source: Database) -> None:
    rows = source.execute(
        "SELECT format_type(oid, NULL) FROM pg_type WHERE typtype IN ('b', 'r', 'm')"
        " AND typnamespace = 'pg_catalog'::regnamespace AND oid < 16384"
        " AND NOT (typelem <> 0 AND typsubscript = 'array_subscript_handler'::regproc"
        "          AND typname LIKE '\\_%')"
    )
    listed = set(re.findall(r"`([^`]+)`", _first_cells(TYPES_PAGE.read_text())))
    built_in = {name for (name,) in rows}
    assert built_in - listed == set()
    names = "SELECT format_type(name::regtype, NULL) FROM unnest(%s::text[]) name"
    tried = {name for (name,) in source.execute(names, [list(ROUND_TRIPS)])}
    assert built_in - tried == NO_VALUES & built_in


def _first_cells(page: str) -> str:
    return "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("|"))
