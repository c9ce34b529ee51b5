"""What values and filters are made from, through all rules of a table."""

from __future__ import annotations

from pgtide.config.rules import Filter, Rule, Transform
from pgtide.rules import compile_rules

COLUMNS = ("id", "name", "nick", "secret", "gone", "n")


def test_origins() -> None:
    rules = [
        Rule(table="t", transform=Transform(column="nick", sql="concat(`name`, Nick, 'secret')")),
        Rule(table="t", rename={"nick": "alias"}),
        Rule(table="t", transform=Transform(column="secret", sql="upper(alias)")),
        Rule(table="t", transform=Transform.model_validate({"column": "gone", "null": True})),
        Rule(table="t", exclude=["name"]),
        Rule(table="t", filter=Filter(column="alias", operator="is_null")),
        Rule(table="t", operations=("update",), filter=Filter(sql="n > 0")),
        Rule(table="t", operations=("update",), transform=Transform(column="n", sql="id")),
        Rule(table="t", optional=True, filter=Filter(column="other", operator="is_null")),
    ]
    found = compile_rules(rules, [], "public", "t").origins(COLUMNS)
    assert found.values == {
        "id": {"id"},
        "nick": {"name", "nick"},
        "secret": {"name", "nick"},
        "gone": set(),
        "n": {"n"},
    }
    assert found.filters == {"name", "nick"}, "rows that are read count as inserts"
    assert found.computed == {"nick", "secret"}


def test_where_null_makes_a_difference() -> None:
    masked = {"column": "secret", "mask": {}}
    rules = [
        Rule(table="t", transform=Transform.model_validate(masked)),
        Rule(table="t", transform=Transform(column="nick", sql="coalesce(name, 'x')")),
        Rule(table="t", transform=Transform(column="gone", sql="id")),
        Rule(table="t", exclude=["gone"]),
        Rule(table="t", filter=Filter(column="n", operator="is_null")),
    ]
    found = compile_rules(rules, [], "public", "t").origins(COLUMNS)
    assert found.of_null == {"name", "nick", "n"}
