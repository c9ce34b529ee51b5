"""pg_flo's files, taken as they are; the examples are those of its documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgtide.config import Config, Pipeline, load
from pgtide.errors import ConfigError
from pgtide.rules import TableRules, compile_rules
from tests.rules.bench import UNSENT, Bench, rules_of

RULES = r"""
tables:
  users:
    - type: transform
      column: email
      parameters: {type: mask, mask_char: "*", allow_empty_deletes: true}
      operations: [INSERT, UPDATE, DELETE]
    - type: transform
      column: phone
      parameters:
        type: regex
        pattern: "^(\\d{3})(\\d{3})(\\d{4})$"
        replace: "(${1}) $2-$3"
    - type: filter
      column: age
      parameters: {operator: gte, value: 18}
      operations: [INSERT]
      allow_empty_deletes: true
    - type: exclude_column
      column: secret
      operations: [INSERT, UPDATE]
    - type: exclude_column
      column: gone
"""

ROUTES = """
users:
  source_table: users
  destination_table: customers
  column_mappings:
    - source: id
      destination: customer_id
    - source: username
      destination: customer_name
  operations:
    - INSERT
    - UPDATE
orders:
  source_table: orders
  destination_table: transactions
products:
  source_table: not_the_key
  operations: [DELETE]
"""

MAIN = """
source: {{url: host=db}}
log: {{path: log}}
pipelines:
  lake:
    sink: {{type: stdout}}
    {more}
"""


def loaded(directory: Path, more: str, /, **files: str) -> Config:
    for name, text in files.items():
        (directory / f"{name}.yaml").write_text(text, encoding="utf-8")
    main = directory / "pgtide.yaml"
    main.write_text(MAIN.format(more=more), encoding="utf-8")
    return load(main, {"SALT": "hunter2"})


def pipeline(directory: Path, more: str, **files: str) -> Pipeline:
    return loaded(directory, more, **files).pipelines["lake"]


def refused(directory: Path, more: str, **files: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loaded(directory, more, **files)
    return caught.value


def compiled(found: Pipeline, table: str, schema: str = "public") -> TableRules:
    return compile_rules(found.rules, found.routes, schema, table)


def test_the_documented_examples(bench: Bench, tmp_path: Path) -> None:
    found = pipeline(tmp_path, "rules_file: r.yaml\n    routes_file: t.yaml", r=RULES, t=ROUTES)
    users = compiled(found, "users")
    assert users.target == ("public", "customers")
    assert users.operations == {"insert", "update"}
    columns = {
        "id": "int4", "username": "text", "email": "text", "phone": "text", "age": "int4",
        "secret": "text",
    }  # fmt: skip
    row = {"id": "1", "username": "ann", "email": "ann@x.org", "phone": "5551234567", "age": "7"}
    rows: list[dict[str, Any]] = [
        {**row, "age": "18", "secret": "s"},
        row,
        {**row, "op": "update"},
        {"op": "delete", **dict.fromkeys(columns, UNSENT), "id": "1"},
    ]
    result = bench.run(users, columns, rows)
    assert [keep for keep, _ in result] == [True, False, True, True]
    assert result[0][1] == {
        "customer_id": 1,
        "customer_name": "ann",
        "email": "a*******g",
        "phone": "(555) 123-4567",
        "age": 18,
    }
    assert users.names(columns)["id"] == "customer_id"


def test_routes(bench: Bench, tmp_path: Path) -> None:
    found = pipeline(tmp_path, "routes_file: t.yaml", t=ROUTES)
    orders = compiled(found, "orders", schema="sales")
    assert (orders.target, len(orders.operations)) == (("sales", "transactions"), 3)
    products = compiled(found, "products")
    assert products.target == ("public", "products")
    assert products.operations == {"delete"}
    assert compiled(found, "not_the_key").route is None
    other = compiled(found, "other")
    assert (other.target, len(other.operations)) == (("public", "other"), 3)
    frame, _ = bench.cells(
        {"id": "int4"}, [{"op": op} for op in ("insert", "read", "update", "delete", "truncate")]
    )
    admitted = products.admits(frame["op"])
    assert admitted is not None
    shown = [row[0] for row in frame.sort("n").select(admitted).collect()]
    assert shown == [False, False, False, True, True]
    assert other.admits(frame["op"]) is None


@pytest.mark.parametrize(
    ("to", "target"),
    [
        ("crm.customers", ("crm", "customers")),
        ("customers", ("public", "customers")),
        ("crm.*", ("crm", "users")),
        ('"odd.schema"."*"', ("odd.schema", "*")),
    ],
)
def test_destinations(to: str, target: tuple[str, str]) -> None:
    routes = f"[{{table: 'public.*', to: '{to}'}}, {{table: orders, to: x}}]"
    assert rules_of("[]", routes).target == target
    assert rules_of("[]", routes, "public.orders").target == ("public", "x")


def test_own_form_in_a_file(tmp_path: Path) -> None:
    text = "- {table: users, transform: {column: a, hash: {salt: '${SALT}'}}}"
    more = "rules: [{table: users, exclude: [b]}]\n    rules_file: r.yaml"
    config = loaded(tmp_path, more, r=text)
    first, second = config.pipelines["lake"].rules
    assert first.exclude == ["b"]
    assert second.transform is not None
    assert second.transform.hash is not None
    assert second.transform.hash.salt.get_secret_value() == "hunter2"
    assert "hunter2" not in f"{config!r} {second!r} {second}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("operator: gte", "operator: gt3", "tables.users[2].parameters.operator: must be 'eq'"),
        ("type: filter", "type: filtre", "tables.users[2].type: must be 'transform', 'filter'"),
        ("mask_char:", "mask_chr:", "tables.users[0].parameters.mask_chr: unknown setting"),
        (', mask_char: "*"', "", "tables.users[0]: parameters of a transform: mask_char, type or"),
        ("[INSERT]", "[]", "tables.users[2].operations: must not be empty"),
        ("[INSERT]", "[UPSERT]", "tables.users[2].operations[0]: must be 'insert', 'update'"),
        ("value: 18", "value: [18]", "tables.users[2]: gte takes a single value"),
        ("tables:", "table:", "settings in"),
    ],
)
def test_wrong_rule_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in RULES
    error = refused(tmp_path, "rules_file: r.yaml", r=RULES.replace(old, new, 1))
    assert message in error.message
    assert str(tmp_path / "r.yaml") in error.message
    assert error.hint


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert "there is no file" in refused(tmp_path, "rules_file: r.yaml").message
    assert "holds no rules" in refused(tmp_path, "rules_file: r.yaml", r="just text").message


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "{table: u}",
            "needs exactly one of filter, transform, exclude, include, rename; has none",
        ),
        ("{table: u, exclude: [a], include: [b]}", "has exclude and include"),
        ("{table: u, fliter: {}}", "pipelines.lake.rules[0].fliter: unknown setting"),
        ("{table: u, filter: {column: a}}", "needs column and operator, or sql"),
        ("{table: u, filter: {column: a, operator: in, value: 1}}", "in takes a list"),
        ("{table: u, filter: {column: a, operator: eq}}", "eq takes a single value"),
        ("{table: u, filter: {column: a, sql: b}}", "sql stands alone"),
        ("{table: u, transform: {column: a}}", "exactly one of mask"),
        ("{table: u, transform: {column: a, hash: {salt: ''}}}", "hash.salt"),
        ("{table: u, transform: {column: a, mask: {chr: x}}}", "mask.chr: unknown setting"),
        ("{table: a.b.c, exclude: [a]}", "is not a table pattern"),
        ("{table: u, rename: {a: b}, operations: [insert]}", "rename applies to all operations"),
        ("{table: u, exclude: [a], operations: [update]}", "exclude applies to all operations"),
        ("{table: u, exclude: []}", "rules[0].exclude"),
    ],
)
def test_wrong_rules(tmp_path: Path, rule: str, message: str) -> None:
    assert message in refused(tmp_path, f"rules: [{rule}]").message


def test_null_is_a_key(tmp_path: Path) -> None:
    found = pipeline(tmp_path, "rules: [{table: u, transform: {column: a, null: true}}]")
    assert found.rules[0].transform is not None
    assert found.rules[0].transform.way == "null"
