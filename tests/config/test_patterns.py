from __future__ import annotations

import pytest

from pgtide.config import TablePatterns
from pgtide.errors import ConfigError


@pytest.mark.parametrize(
    ("patterns", "table", "matches"),
    [
        (["*.*"], ("public", "orders"), True),
        (["*.*"], ("Übung", "Straße"), True),
        (["public.*"], ("sales", "orders"), False),
        (["orders"], ("public", "orders"), True),
        (["orders"], ("sales", "orders"), False),
        (["*"], ("public", "orders"), True),
        (["*"], ("sales", "orders"), False),
        (["public.order?"], ("public", "orders"), True),
        (["public.order?"], ("public", "order"), False),
        (["public.p_[0-9]"], ("public", "p_7"), True),
        (["public.p_[0-9]"], ("public", "p_x"), False),
        (["sales_*.orders"], ("sales_2026", "orders"), True),
        # the last match decides
        (["public.*", "!public.audit_*"], ("public", "audit_log"), False),
        (["public.*", "!public.audit_*"], ("public", "orders"), True),
        (["public.*", "!public.audit_*", "public.audit_log"], ("public", "audit_log"), True),
        (["public.audit_log", "!public.*"], ("public", "audit_log"), False),
        # names as the catalog spells them
        (["public.Orders"], ("public", "Orders"), True),
        (["public.Orders"], ("public", "orders"), False),
        # quoted parts are literal
        (['public."odd.name"'], ("public", "odd.name"), True),
        (['"my schema"."a*b"'], ("my schema", "a*b"), True),
        (['"my schema"."a*b"'], ("my schema", "aXb"), False),
        (['"say ""hi"""'], ("public", 'say "hi"'), True),
        (['"!x"'], ("public", "!x"), True),
        (["*.*", '!"odd.name"'], ("public", "odd.name"), False),
        # a glob ends where the name ends
        (["public.a"], ("public", "a\n"), False),
        (["public.*"], ("public", "a\nb"), True),
    ],
)
def test_matching(patterns: list[str], table: tuple[str, str], matches: bool) -> None:
    assert TablePatterns(patterns).matches(*table) is matches


@pytest.mark.parametrize("schema", ["pg_catalog", "pg_toast", "information_schema", "pgtide"])
def test_system_schemas_are_never_matched(schema: str) -> None:
    assert not TablePatterns(["*.*"]).matches(schema, "anything")
    with pytest.raises(ConfigError, match="cannot be captured"):
        TablePatterns([f"{schema}.*"])


@pytest.mark.parametrize(
    ("patterns", "schemas"),
    [
        (["orders", "sales.*", "!old.*"], {"public", "sales"}),
        (['"a*".b'], {"a*"}),
        (["public.*", "*.orders"], None),
        (["[ab].x"], None),
    ],
)
def test_literal_schemas(patterns: list[str], schemas: set[str] | None) -> None:
    assert TablePatterns(patterns).schemas() == schemas


@pytest.mark.parametrize(
    "pattern", ["", "!", ".", "a.", ".b", "a.b.c", '"a', 'a"b"', '"".x', '"a"b.c', "a..b"]
)
def test_bad_pattern_is_quoted_in_the_error(pattern: str) -> None:
    with pytest.raises(ConfigError, match="is not a table pattern") as caught:
        TablePatterns([pattern])
    assert repr(pattern) in caught.value.message
    assert "schema.table" in caught.value.hint


@pytest.mark.parametrize("patterns", [[], ["!public.audit_*"]])
def test_patterns_that_include_nothing(patterns: list[str]) -> None:
    with pytest.raises(ConfigError, match="no pattern includes a table"):
        TablePatterns(patterns)


def test_patterns_without_a_table_are_reported() -> None:
    patterns = TablePatterns(["public.*", "sale.*", "!nothing.*"])
    assert patterns.unmatched([("public", "orders"), ("sales", "orders")]) == ["sale.*"]
