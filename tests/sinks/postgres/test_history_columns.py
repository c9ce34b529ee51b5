"""How columns of a history follow those of the source, as statements."""

from __future__ import annotations

import pytest

from pgtide.errors import TargetError
from pgtide.sinks.postgres.history_columns import HistoryColumn, Reshaping, free_name, widens

INT = HistoryColumn("n", "integer", "integer", 2)


def statements(there: list[HistoryColumn], *wanted: HistoryColumn) -> list[str]:
    """What is altered, without comments."""
    reshaping = Reshaping("t", there, wanted)
    reshaping.run()
    altered = [text for text in reshaping.statements if text.startswith("ALTER")]
    return [text.removeprefix("ALTER TABLE t ") for text in altered]


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("integer", "bigint", True),
        ("bigint", "integer", False),
        ("bigint", "double precision", False),
        ("integer", "numeric", True),
        ("integer", "numeric(3,0)", False),
        ("numeric(9,2)", "numeric(12,4)", True),
        ("numeric(9,2)", "numeric(10,4)", False),
        ("numeric(9,2)", "numeric", True),
        ("numeric", "numeric(9,2)", False),
        ("character varying(3)", "character varying(9)", True),
        ("character varying(9)", "character varying(3)", False),
        ("character varying(9)", "text", True),
        ("timestamp(3) without time zone", "timestamp without time zone", False),
        ("public.mood", "text", False),
    ],
)
def test_types_that_hold_all_values_of_another(old: str, new: str, wanted: bool) -> None:
    assert widens(old, new) == wanted


def test_a_type_changes_in_place_or_begins_anew() -> None:
    wide = HistoryColumn("n", "bigint", "bigint", 2)
    assert statements([INT], wide) == ['ALTER COLUMN "n" TYPE bigint']
    assert statements([wide], INT) == [
        'RENAME COLUMN "n" TO "n__bigint"',
        'ADD COLUMN "n" integer',
    ]
    # A column that somebody has given another type keeps it.
    assert statements([HistoryColumn("n", "text", "integer", 2)], wide) == []


def test_columns_whose_number_nobody_knew() -> None:
    unknown = HistoryColumn("n", "integer", "integer")
    assert statements([unknown], INT) == []
    assert statements([INT], unknown) == []
    assert HistoryColumn.there("n", "integer", unknown.mark) == unknown
    assert HistoryColumn.there("n", "integer", INT.mark) == INT
    odd = HistoryColumn("n", "text", 'public."odd\nname"', 2)
    assert HistoryColumn.there("n", "text", odd.mark) == odd


def test_comments_that_somebody_has_replaced() -> None:
    """The column would be begun anew, and nobody told."""
    described = HistoryColumn.there("n", "integer", "what somebody says of it")
    assert described.source is None
    with pytest.raises(TargetError, match="comment of column n of t") as raised:
        statements([described], INT)
    assert "COMMENT ON COLUMN t.\"n\" IS 'pgtide attnum 2, integer'." in raised.value.hint
    # One of somebody's own, where the history's has its comment.
    assert statements([described, HistoryColumn("m", "integer", "integer", 2)], INT) == [
        'RENAME COLUMN "n" TO "n__integer"',
        'RENAME COLUMN "m" TO "n"',
    ]


def test_names_that_are_in_the_way() -> None:
    """Of a column that is gone, of somebody's own one, of one that has to move itself."""
    own = HistoryColumn("m", "date")
    other = HistoryColumn("m", "text", "text", 3)
    assert statements([INT, own], HistoryColumn("m", "integer", "integer", 2)) == [
        'RENAME COLUMN "m" TO "m__date"',
        'RENAME COLUMN "n" TO "m"',
    ]
    swapped = [HistoryColumn("n", "text", "text", 3), HistoryColumn("m", "integer", "integer", 2)]
    assert statements([INT, other], *swapped) == [
        'RENAME COLUMN "n" TO "_pgtide_attnum_2"',
        'RENAME COLUMN "m" TO "_pgtide_attnum_3"',
        'RENAME COLUMN "_pgtide_attnum_2" TO "m"',
        'RENAME COLUMN "_pgtide_attnum_3" TO "n"',
    ]


def test_names_fit() -> None:
    assert free_name("n", "__int", {"n__int"}) == "n__int__2"
    long = free_name("ü" * 40, "__int", set())
    assert long == "ü" * 29 + "__int"
    assert len(long.encode()) == 63
