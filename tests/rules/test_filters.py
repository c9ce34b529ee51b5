from __future__ import annotations

from typing import Any

import pytest
import yaml
from pyspark.sql import Column
from pyspark.sql import functions as F

from pgtide.config.rules import Filter
from pgtide.errors import ConfigError
from pgtide.rules.comparisons import comparison
from tests.rules.bench import UNSENT, Bench, rules_of

pytestmark = pytest.mark.compiled

# type, text, operator, value, whether the row is kept
COMPARISONS: list[tuple[str, str | None, str, Any, bool | None]] = [
    ("int4", "18", "gte", 18, True),
    ("int4", "17", "gte", 18, False),
    ("int4", "17", "gte", "18", False),
    ("int4", "18", "gt", 17.5, True),
    ("int4", "17", "gt", 17.5, False),
    ("int4", "17", "lt", 17.5, True),
    ("int4", "18", "lte", 17.5, False),
    ("int4", "-18", "lt", -17.5, True),
    ("int4", "-17", "lt", -17.5, False),
    ("int4", "18", "eq", 17.5, False),
    ("int4", "18", "ne", 17.5, True),
    ("int4", "18", "eq", "18.00", True),
    ("int4", "18", "lt", "1e30", True),
    ("int4", "18", "gt", "-1e30", True),
    ("int4", "18", "eq", "1e30", False),
    ("int4", "18", "in", [1, 18], True),
    ("int4", "18", "in", [1, 19], False),
    ("int4", None, "ne", 18, None),
    ("int4", None, "eq", "1e30", None),
    ("int8", "9223372036854775807", "gte", "9223372036854775807", True),
    ("int8", "9223372036854775806", "gte", "9223372036854775807", False),
    ("int8", "9007199254740993", "eq", "9007199254740992", False),
    ("numeric(10,2)", "18.00", "gte", 18, True),
    ("numeric(10,2)", "17.99", "gte", "17.991", False),
    ("numeric(10,2)", "18.00", "gte", "17.991", True),
    ("numeric(10,2)", "17.99", "lt", "17.991", True),
    ("numeric(10,2)", "17.99", "eq", "17.9900", True),
    ("numeric(10,2)", "NaN", "gte", 18, True),
    ("numeric(10,2)", "NaN", "eq", 18, False),
    ("numeric", "NaN", "lt", 18, False),
    ("numeric", "-Infinity", "lt", 18, True),
    ("numeric", "Infinity", "gt", "1e300", True),
    ("numeric", "9", "lt", 10, True),
    ("numeric", "100", "lt", 99, False),
    ("numeric", "10.50", "eq", "10.5", True),
    ("numeric", "10.05", "lt", "10.5", True),
    ("numeric", "0.00", "eq", 0, True),
    ("numeric", "0", "gt", -1, True),
    ("numeric", "-0.5", "lt", 0, True),
    ("numeric", "-2", "gt", -10, True),
    ("numeric", "-10", "gt", -2, False),
    ("numeric", "-2.10", "eq", "-2.1", True),
    ("numeric", "123456789012345678901234567890123456789012345.1", "gt",
     "123456789012345678901234567890123456789012345", True),
    ("numeric", None, "lt", 18, None),
    ("float8", "0.1", "eq", 0.1, True),
    ("float4", "0.1", "eq", 0.1, True),
    ("float8", "NaN", "gt", "1e300", True),
    ("float8", "-Infinity", "lt", 0, True),
    ("bool", "t", "eq", True, True),
    ("bool", "f", "eq", "true", False),
    ("bool", "f", "ne", True, True),
    ("text", "abc", "lt", "abd", True),
    ("text", "999.99", "lt", 1000, False),  # lexicographic, as pg_flo's tests have it
    ("text", "Zebra", "lt", "apple", True),
    ("text", "john@example.com", "contains", "example", True),
    ("text", "john@example.com", "contains", "EXAMPLE", False),
    ("text", "50%_a", "contains", "%_", True),
    ("text", "50 a", "contains", "%", False),
    ("text", "", "eq", "", True),
    ("text", "naïve", "in", ["naïve", "b"], True),
    ("text", None, "contains", "a", None),
    ("bpchar", "ab   ", "eq", "ab", True),
    ("bpchar", "ab   ", "contains", "b ", False),
    ("bpchar", "a b  ", "contains", "a b", True),
    ("varchar", "ab   ", "eq", "ab", False),
    ("date", "2024-05-01", "gte", "2024-05-01", True),
    ("date", "2024-05-01", "gt", "2024-05-01T00:00:01Z", False),
    ("date", "2024-05-02", "gt", "2024-05-01T00:00:01Z", True),
    ("date", "infinity", "gt", "9999-12-31", True),
    ("date", "-infinity", "lt", "0001-01-01", True),
    ("date", "0044-03-15 BC", "lt", "0001-01-01", True),
    ("date", "12024-01-01", "gt", "2024-01-01", True),
    ("timestamp", "2024-05-01 12:00:00.5", "gt", "2024-05-01 12:00:00", True),
    ("timestamp", "2024-05-01 12:00:00.5", "lt", "2024-05-01 12:00:00.51", True),
    ("timestamp", "2024-05-01 12:00:00.5", "eq", "2024-05-01T12:00:00.500000", True),
    ("timestamp", "2024-05-01 00:00:00", "lte", "2024-05-01", True),
    ("timestamptz", "2024-05-01 10:00:00+00", "eq", "2024-05-01T12:00:00+02:00", True),
    ("timestamptz", "2024-05-01 10:00:00+00", "eq", "2024-05-01 12:00:00+02", True),
    ("timestamptz", "2024-05-01 10:00:00+00", "lt", "2024-05-01T10:00:00Z", False),
    ("timestamptz", "2024-05-01 10:00:00.000001+00", "gt", "2024-05-01T10:00:00Z", True),
    ("time", "09:30:00", "lt", "10:00", True),
    ("uuid", "0b0f6f2c-0000-4000-8000-000000000001", "eq",
     "{0B0F6F2C-0000-4000-8000-000000000001}", True),
    ("jsonb", '{"a": 1}', "eq", '{"a": 1}', True),
    ("text", None, "is_null", True, True),
    ("text", "", "is_null", True, False),
    ("text", None, "is_null", False, False),
    ("numeric(10,2)", "NaN", "is_null", True, False),
]  # fmt: skip


def test_comparisons(bench: Bench) -> None:
    columns = {f"c{at}": case[0] for at, case in enumerate(COMPARISONS)}
    frame, cells = bench.cells(columns, [{f"c{at}": c[1] for at, c in enumerate(COMPARISONS)}])
    met: list[Column] = []
    for cell, (_, _, operator, value, _) in zip(cells, COMPARISONS, strict=True):
        wanted = {"column": cell.name, "operator": operator, "value": value}
        met.append(comparison(Filter.model_validate(wanted), cell).alias(cell.name))
    found = frame.select(met).collect()[0]
    wrong = [case for case, result in zip(COMPARISONS, found, strict=True) if result != case[-1]]
    assert wrong == []


def test_yaml_times_need_no_quotes(bench: Bench) -> None:
    rules = rules_of(
        "[{table: users, filter: {column: at, operator: gte, value: 2024-05-01T12:00:00+02:00}},"
        " {table: users, filter: {column: day, operator: eq, value: 2024-05-01}}]"
    )
    rows = [
        {"at": "2024-05-01 10:00:00+00", "day": "2024-05-01"},
        {"at": "2024-05-01 09:59:59+00", "day": "2024-05-01"},
        {"at": "2024-05-01 10:00:00+00", "day": "2024-05-02"},
    ]
    assert bench.kept(rules, {"at": "timestamptz", "day": "date"}, rows) == [True, False, False]


def test_null_and_not_sent_differ(bench: Bench) -> None:
    """NULL is not kept; a value that was not sent leaves it open, unless another filter decides."""
    rules = rules_of(
        "[{table: users, filter: {column: age, operator: gte, value: 18}},"
        " {table: users, filter: {column: bio, operator: contains, value: x}}]"
    )
    rows: list[dict[str, Any]] = [
        {"age": "20", "bio": "x"},
        {"age": None, "bio": "x"},
        {"age": "20", "bio": None},
        {"op": "update", "age": "20", "bio": UNSENT},
        {"op": "update", "age": "10", "bio": UNSENT},
        {"op": "update", "age": None, "bio": UNSENT},
        {"op": "delete", "age": UNSENT, "bio": UNSENT},
        {"op": "truncate", "age": None, "bio": None},
    ]
    expected = [True, False, False, None, False, False, None, True]
    assert bench.kept(rules, {"age": "int4", "bio": "text"}, rows) == expected


def test_operations(bench: Bench) -> None:
    text = "{table: users, filter: {column: age, operator: gte, value: 18}, operations: [%s]}"
    rows: list[dict[str, Any]] = [
        {"op": op, "age": "10"} for op in ("insert", "read", "update", "delete", "truncate")
    ]
    columns = {"age": "int4"}
    some = bench.kept(rules_of(f"[{text % 'INSERT'}]"), columns, rows)
    assert some == [False, False, True, True, True]
    some = bench.kept(rules_of(f"[{text % 'update, delete'}]"), columns, rows)
    assert some == [True, True, False, False, True]


def test_allow_empty_deletes(bench: Bench) -> None:
    rules = rules_of(
        "[{table: users, allow_empty_deletes: true,"
        " filter: {column: age, operator: gte, value: 18}}]"
    )
    rows: list[dict[str, Any]] = [
        {"op": "delete", "age": UNSENT},
        {"op": "delete", "age": None},
        {"op": "delete", "age": "17"},
        {"op": "delete", "age": "18"},
        {"op": "update", "age": None},
        {"op": "update", "age": UNSENT},
    ]
    assert bench.kept(rules, {"age": "int4"}, rows) == [True, True, False, True, False, None]
    present = "{column: age, operator: is_null, value: false}"
    rules = rules_of(f"[{{table: users, allow_empty_deletes: true, filter: {present}}}]")
    assert bench.kept(rules, {"age": "int4"}, rows) == [True, True, True, True, False, None]


def test_sql(bench: Bench) -> None:
    columns = {"age": "int4", "name": "text", "odd name.é": "text", "op": "text"}
    rules = rules_of(
        """[{table: users, filter: {sql: "age >= 18 and upper(name) = 'ANN' -- comment"}},
            {table: users, filter: {sql: "`odd name.é` is null or `odd name.é` <> 'age'"}}]"""
    )
    rows: list[dict[str, Any]] = [
        {"age": "18", "name": "ann"},
        {"age": "18", "name": "bob"},
        {"age": None, "name": "ann"},
        {"age": "18", "name": "ann", "odd name.é": "age"},
        {"age": "18", "name": UNSENT},
        {"age": "18", "name": "ann", "odd name.é": UNSENT},
    ]
    assert bench.kept(rules, columns, rows) == [True, False, False, False, None, None]


@pytest.mark.parametrize(
    "sql",
    ["agee > 1", "age >", "age + 1", "count(age) > 1", "n > 0", "id > age", "(select true)"],
)
def test_sql_that_means_nothing(bench: Bench, sql: str) -> None:
    rules = rules_of(yaml.safe_dump([{"table": "users", "filter": {"sql": sql}}]))
    _, cells = bench.cells({"age": "int4"}, [{"age": "1"}])
    with pytest.raises(ConfigError, match=r"rule 1 for public\.users: its SQL"):
        rules.keep(cells, F.col("op"))


def test_no_filter_is_no_column(bench: Bench) -> None:
    _, cells = bench.cells({"age": "int4"}, [{}])
    other = "[{table: orders, filter: {column: x, operator: eq, value: 1}}]"
    assert rules_of(other).keep(cells, F.col("op")) is None
    assert (
        rules_of("[{table: users, exclude: [x], optional: true}]").keep(cells, F.col("op")) is None
    )


@pytest.mark.parametrize(
    ("column", "operator", "value", "message"),
    [
        ("agee", "gte", 18, "there is no column agee"),
        ("age", "contains", "1", "contains cannot compare column age, which is a number"),
        ("age", "gte", "eighteen", "its value is not a number"),
        ("age", "gte", True, "its value is not a number"),
        ("active", "gt", True, "gt cannot compare column active, which is boolean"),
        ("active", "eq", "yes", "its value is not boolean"),
        ("born", "gt", "yesterday", "its value is not a date"),
        ("seen", "gt", "12:00", "its value is not a timestamp with time zone"),
        ("doc", "gt", "1", "gt cannot compare column doc"),
    ],
)
def test_refused(bench: Bench, column: str, operator: str, value: Any, message: str) -> None:
    wanted = {"column": column, "operator": operator, "value": value}
    rules = rules_of(yaml.safe_dump([{"table": "public.users", "filter": wanted}]))
    columns = {
        "age": "int4", "active": "bool", "born": "date", "seen": "timestamptz", "doc": "jsonb",
    }  # fmt: skip
    _, cells = bench.cells(columns, [{}])
    with pytest.raises(ConfigError) as caught:
        rules.keep(cells, F.col("op"))
    assert caught.value.message.startswith(f"rule 1 for public.users: {message}")
    assert (
        str(value) not in caught.value.message.partition(": ")[2] or value is True or value == "1"
    )
