from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from pgtide.errors import ConfigError
from tests.rules.bench import UNSENT, Bench, rules_of

pytestmark = pytest.mark.compiled

SALT = "grain-of-salt"


def one(**transform: Any) -> str:
    return yaml.safe_dump([{"table": "public.users", "transform": {"column": "c", **transform}}])


# transform, value, result
TEXTS: list[tuple[dict[str, Any], str | None, str | None]] = [
    ({"mask": {"char": "*"}}, "john@example.com", "j**************m"),
    ({"mask": {}}, "abc", "a*c"),
    ({"mask": {}}, "ab", "ab"),
    ({"mask": {}}, "a", "a"),
    ({"mask": {}}, "", ""),
    ({"mask": {}}, None, None),
    ({"mask": {"char": "#"}}, "äöüß", "ä##ß"),
    ({"mask": {}}, "😀ab😎", "😀**😎"),
    ({"regex": {"pattern": r"^(\d{3})(\d{3})(\d{4})$", "replace": "($1) $2-$3"}},
     "5551234567", "(555) 123-4567"),
    ({"regex": {"pattern": r"^(\d{3})(\d{3})(\d{4})$", "replace": "x"}}, "5551234567\n",
     "5551234567\n"),
    ({"regex": {"pattern": r"\d", "replace": "$$"}}, "a1b2", "a$b$"),
    ({"regex": {"pattern": r"(?P<user_name>\w+)@(?P<host>\w+)", "replace": "${host}/$user_name"}},
     "ann@home", "home/ann"),
    ({"regex": {"pattern": r"(a)", "replace": "${1}2\\1"}}, "a", "a2\\1"),
    ({"regex": {"pattern": "(?i)É", "replace": "e"}}, "éÉ", "ee"),
    ({"regex": {"pattern": "a.c", "replace": "x"}}, "a\rc a\nc", "x a\nc"),
    ({"regex": {"pattern": r"a(?i)b", "replace": "x"}}, "aB", "x"),
    ({"regex": {"pattern": r'^{"(\w{1,3})":{,2}', "replace": "$1"}}, '{"abc":{,2}', "abc"),
    ({"regex": {"pattern": r"[\x{41}-\x{43}{]|\x{1F600}", "replace": "x"}}, "AD{😀", "xDxx"),
    ({"regex": {"pattern": "x", "replace": "y"}}, None, None),
    # What Go prints for these; Java by itself says otherwise.
    ({"regex": {"pattern": r"\v|[\v]", "replace": "x"}}, "a\nb\x0b", "a\nbx"),
    ({"regex": {"pattern": r"\s[\s]", "replace": "x"}}, "a \n\x0b\t", "ax\x0b\t"),
    ({"regex": {"pattern": r"\S+|[^\S]", "replace": "x"}}, "a\x0bb \n", "xxx"),
    ({"regex": {"pattern": r"(?i)\bk\b", "replace": "x"}}, "k ék K\u212a", "x éx x\u212a"),
    ({"regex": {"pattern": r"\B", "replace": "-"}}, "aé", "aé-"),
    ({"regex": {"pattern": r"\101[\60-\62]", "replace": "x"}}, "A1 A3", "x A3"),
    ({"regex": {"pattern": r"\p{Greek}\p{^Greek}\P{^Latin}", "replace": "x"}}, "ab αbc", "ab x"),
    ({"regex": {"pattern": r"[\p{Greek}\p{Nd}]", "replace": "x"}}, "aα1", "axx"),
    ({"regex": {"pattern": r"(?-i)a(?i-s:B)", "replace": "x"}}, "abAB", "xAB"),
    ({"regex": {"pattern": "(?m)^", "replace": ">"}}, "a\nb\n", ">a\n>b\n>"),
    ({"regex": {"pattern": "(?m)a$", "replace": "x"}}, "a\r\na\na", "a\r\nx\nx"),
    ({"regex": {"pattern": "(?m:^a$)|b$", "replace": "x"}}, "a\nb\nb", "x\nb\nx"),
    ({"regex": {"pattern": "(?m)(a(?-m)$)|b$", "replace": "x"}}, "a\nb\na", "a\nx\nx"),
    # A character is never cut in two, though Java's strings have halves.
    ({"regex": {"pattern": "()", "replace": "-"}}, "a😀", "-a-😀-"),
    ({"regex": {"pattern": r"\P{So}", "replace": ""}}, "a😀b", "😀"),
    ({"replace": {"from": ".", "to": "-"}}, "1.2.3", "1-2-3"),
    ({"replace": {"from": "a", "to": ""}}, "banana", "bnn"),
    ({"truncate": {"length": 3}}, "äöüß", "äöü"),
    ({"truncate": {"length": 3}}, "ab", "ab"),
    ({"truncate": {"length": 0}}, "ab", ""),
    ({"null": True}, "ab", None),
    ({"sql": "upper(c)"}, "ab", "AB"),
    ({"sql": "concat(c, '!')"}, None, None),
    ({"sql": "'fixed'"}, "ab", "fixed"),
    ({"hash": {"salt": SALT}}, "äb", hashlib.sha256(f"{SALT}äb".encode()).hexdigest()),
    ({"hash": {"salt": SALT}}, None, None),
]  # fmt: skip


def test_texts(bench: Bench) -> None:
    names = {f"c{at}": "text" for at in range(len(TEXTS))}
    text = yaml.safe_dump(
        [
            {"table": "public.users", "transform": {"column": name, **_with(name, case[0])}}
            for name, case in zip(names, TEXTS, strict=True)
        ]
    )
    row = {name: case[1] for name, case in zip(names, TEXTS, strict=True)}
    (found,) = bench.values(rules_of(text), names, [row])
    wrong = [case for name, case in zip(names, TEXTS, strict=True) if found[name] != case[2]]
    assert wrong == []
    frame, cells = bench.cells(names, [])
    out = rules_of(text).apply(cells, F.col("op"))
    # One by one, for a plan of many columns is shown in part.
    plans = [frame.select(cell.value)._jdf.queryExecution().analyzed().toString() for cell in out]
    assert "sha2" in plans[-1]
    assert not [plan for plan in plans if "Python" in plan or "udf" in plan.lower()]


def _with(name: str, transform: dict[str, Any]) -> dict[str, Any]:
    if "sql" not in transform:
        return transform
    return {"sql": transform["sql"].replace("(c", f"({name}")}


def test_sql_cannot_read_what_has_a_salt(bench: Bench) -> None:
    """Spark has no subqueries in lambdas, and that is where both are."""
    salted = {"table": "users", "transform": {"column": "c", "hash": {"salt": SALT}}}
    masked = {"table": "users", "transform": {"column": "c", "mask": {}}}
    emptied = {"table": "users", "transform": {"column": "c", "null": True}}
    computed = {"table": "users", "transform": {"column": "d", "sql": "upper(c)"}}
    columns = {"c": "text", "d": "text"}
    for some in ({}, {"operations": ["insert"]}):
        rules = rules_of(yaml.safe_dump([{**salted, **some}, masked, computed]))
        with pytest.raises(ConfigError, match=r"rule 3 .*: its SQL reads c, which .* hashed"):
            bench.run(rules, columns, [])
    for first in (computed, emptied):
        order = [first, salted] if first is computed else [salted, emptied, computed]
        bench.run(rules_of(yaml.safe_dump(order)), columns, [{"c": "a"}])


def test_padding_is_no_text(bench: Bench) -> None:
    (found,) = bench.values(rules_of(one(mask={})), {"c": "bpchar"}, [{"c": "abcd      "}])
    assert found == {"c": "a**d"}


def test_what_was_not_sent_stays_so(bench: Bench) -> None:
    text = """[{table: users, transform: {column: a, mask: {}}},
               {table: users, transform: {column: b, null: true}},
               {table: users, transform: {column: c, sql: "concat(a, d)"}}]"""
    columns = dict.fromkeys("abcd", "text")
    rows: list[dict[str, Any]] = [
        {"op": "update", "a": UNSENT, "b": UNSENT, "c": "x", "d": "1"},
        {"op": "update", "a": "abc", "b": UNSENT, "c": UNSENT, "d": "1"},
    ]
    assert bench.values(rules_of(text), columns, rows) == [
        {"a": UNSENT, "b": None, "c": UNSENT, "d": "1"},
        {"a": "a*c", "b": None, "c": "a*c1", "d": "1"},
    ]


def test_operations(bench: Bench) -> None:
    text = """[{table: users, transform: {column: a, mask: {}}, operations: [INSERT]},
               {table: users, transform: {column: n, hash: {salt: s}}, operations: [update]},
               {table: users, transform: {column: b, null: true}, operations: [delete]},
               {table: users, transform: {column: d, sql: d * 2}, operations: [update]}]"""
    columns = {"a": "text", "n": "int4", "b": "text", "d": "int4"}
    row = {"a": "abc", "n": "7", "b": "b", "d": "4"}
    ops = ("insert", "read", "update", "delete")
    hashed = hashlib.sha256(b"s7").hexdigest()
    assert bench.values(rules_of(text), columns, [{"op": op, **row} for op in ops]) == [
        {"a": "a*c", "n": "7", "b": "b", "d": 4},
        {"a": "a*c", "n": "7", "b": "b", "d": 4},
        {"a": "abc", "n": hashed, "b": "b", "d": 8},
        {"a": "abc", "n": "7", "b": None, "d": 4},
    ]


def test_order(bench: Bench) -> None:
    """Each rule sees what the rules before it left."""
    text = """[{table: users, filter: {column: email, operator: contains, value: "@"}},
               {table: users, transform: {column: email, truncate: {length: 3}}},
               {table: users, transform: {column: email, mask: {}}},
               {table: users, filter: {column: email, operator: eq, value: a*n}},
               {table: users, rename: {email: mail, id: email}},
               {table: users, filter: {column: email, operator: gt, value: 5}},
               {table: users, transform: {column: mail, sql: "concat(mail, email)"}},
               {table: users, exclude: [secret]},
               {table: users, include: [mail, email, gone], optional: true}]"""
    columns = {"id": "int4", "email": "text", "secret": "text", "more": "text"}
    rows = [
        {"id": "7", "email": "ann@x"},
        {"id": "7", "email": "bob@x"},
        {"id": "7", "email": "ann"},
        {"id": "3", "email": "ann@x"},
    ]
    found = bench.run(rules_of(text), columns, rows)
    assert [keep for keep, _ in found] == [True, False, False, False]
    assert found[0][1] == {"email": 7, "mail": "a*n7"}
    assert rules_of(text).names(columns) == {"id": "email", "email": "mail"}


def test_computed_types(bench: Bench) -> None:
    """An SQL expression gives a column a new type, which later rules compare by."""
    text = """[{table: users, transform: {column: a, sql: "timestamp'2024-05-01 12:00:00Z'"}},
               {table: users, transform: {column: b, sql: "b > 1"}},
               {table: users, transform: {column: c, sql: "cast(b as int) + 0.25"}},
               {table: users, filter: {column: a, operator: eq, value: "2024-05-01T12:00:00Z"}},
               {table: users, filter: {column: c, operator: lt, value: "2.26"}}]"""
    rules = rules_of(text)
    columns = {"a": "text", "b": "int4", "c": "text"}
    frame, cells = bench.cells(columns, [{"b": "2"}])
    out = rules.apply(cells, F.col("op"))
    assert [cell.attnum for cell in out] == [1, 2, 3]
    texts = frame.select([cell.text.alias(cell.name) for cell in out]).collect()
    assert tuple(texts[0]) == ("2024-05-01 12:00:00+00", "t", "1.25")
    ((keep, values),) = bench.run(rules, columns, [{"b": "2"}])
    assert (keep, values["b"], values["c"]) == (True, True, Decimal("1.25"))


def test_types_whatever_the_session_takes_a_timestamp_for(
    bench: Bench, spark: SparkSession
) -> None:
    text = one(sql="c + INTERVAL 1 HOUR")
    frame, cells = bench.cells({"c": "timestamptz"}, [{"c": "2024-05-01 12:00:00+00"}])
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        (cell,) = rules_of(text).apply(cells, F.col("op"))
        assert cell.type == TimestampType()
        assert frame.select(cell.text).head() == ("2024-05-01 13:00:00+00",)
    finally:
        spark.conf.unset("spark.sql.timestampType")


@pytest.mark.parametrize(
    ("transform", "kind", "message"),
    [
        ({"mask": {}}, "int4", "mask works on text, column c is a number"),
        ({"regex": {"pattern": "a", "replace": ""}}, "jsonb", "regex works on text"),
        ({"regex": {"pattern": "a(b", "replace": ""}}, "text", "its pattern does not compile"),
        ({"regex": {"pattern": "(?i)a(?-x", "replace": ""}}, "text", "its pattern does not comp"),
        ({"regex": {"pattern": "a", "replace": "$1"}}, "text", "its replacement names a group 1"),
        ({"sql": "array(c)"}, "text", "its SQL gives array<string>"),
        ({"sql": "named_struct('a b', c)"}, "text", "its SQL gives struct<a b:string>"),
        ({"sql": "nope"}, "text", "its SQL cannot be used"),
    ],
)
def test_refused(bench: Bench, transform: dict[str, Any], kind: str, message: str) -> None:
    _, cells = bench.cells({"c": kind}, [{}])
    with pytest.raises(ConfigError) as caught:
        rules_of(one(**transform)).apply(cells, F.col("op"))
    assert caught.value.message.startswith(f"rule 1 for public.users: {message}")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("{table: users, exclude: [a, b]}", "no column would be left"),
        ("{table: users, exclude: [z]}", "there is no column z"),
        ("{table: users, include: [a, z]}", "there is no column z"),
        ("{table: users, rename: {a: b}}", "two columns would be called b"),
        ("{table: '*.users', transform: {column: z, mask: {}}}", ""),
        ("{table: users, transform: {column: z, mask: {}}, optional: true}", ""),
        ("{table: '*.users', filter: {column: z, operator: eq, value: 1}}", "there is no column z"),
        ("{table: users, optional: true, filter: {column: z, operator: eq, value: 1}}", ""),
        ("{table: '*.users', exclude: [z, a]}", ""),
    ],
)
def test_columns_that_are_not_there(bench: Bench, rule: str, message: str) -> None:
    """A rule by name must find its column, or a renamed one would leave unmasked."""
    _, cells = bench.cells({"a": "text", "b": "text"}, [{}])
    rules = rules_of(f"[{rule}]")
    if message:
        with pytest.raises(ConfigError, match=message):
            rules.apply(cells, F.col("op"))
    else:
        left = [cell.name for cell in rules.apply(cells, F.col("op"))]
        assert left == (["b"] if "exclude" in rule else ["a", "b"])


def test_the_salt_is_in_no_plan(bench: Bench, spark: SparkSession) -> None:
    rules = rules_of(one(hash={"salt": SALT}))
    frame, cells = bench.cells({"c": "text"}, [{"c": "x"}])
    (cell,) = rules.apply(cells, F.col("op"))
    assert cell.attnum == 1
    hashed = frame.select(cell.value.alias("c")).filter("c is not null").groupBy("c").count()
    hashed.collect()
    execution = hashed._jdf.queryExecution()
    mode = spark._jvm.org.apache.spark.sql.execution.ExplainMode  # type: ignore[union-attr]
    for name in ("extended", "formatted", "codegen", "cost"):
        plan = execution.explainString(mode.fromString(name))
        assert "sha2" in plan
        assert SALT not in plan
    assert SALT not in f"{rules!r} {rules} {cell!r}"
