"""Random texts of each type: the exact value or unrepresentable, never a third thing.

What is generated as Postgres prints it must decode to the value it was made from. The same texts
with a character added, replaced or taken away, and texts of any kind, must decode to what they
mean to Postgres or to nothing: readers below are written apart from the codecs.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DecimalType

from pgtide.shape import Column
from pgtide.spark.arrow_values import decode
from tests.spark.codec_frames import UNREPRESENTABLE, decode_all, plain

pytestmark = pytest.mark.compiled

TEXTS = 100  # of a type, printed, tampered with, alike and of any kind each
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOISE = '0123456789+-eE.: \n\tdfxNaTZ{}",\\BCnulUL=>_é\u0660'

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
strings = st.text(characters, max_size=6) | st.text(NOISE, max_size=6)


@dataclass(frozen=True)
class Kind:
    """A type: values of it, how Postgres prints one, and what a text means to it, else None."""

    column: Column
    values: st.SearchStrategy[Any]
    show: Callable[[Any], str]
    read: Callable[[str], Any]
    meant: Callable[[Any], Any] = lambda value: value
    """A value in the form in which ``decode_all`` gives it back."""
    form: str = ""
    """A pattern of texts that look like values, whether or not the type has them."""


def integer(bits: int) -> Kind:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def read(text: str) -> int | None:
        if not re.fullmatch(r"[ \t\n]*[+-]?[0-9]+[ \t\n]*", text):
            return None
        return int(text) if low <= int(text) <= high else None

    oid = {16: 21, 32: 23, 64: 20}[bits]
    return Kind(Column("i", oid), st.integers(low, high), str, read, form="-?[0-9]{1,20}")


def read_oid(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,20}", text) and int(text) < 2**32 else None


def read_float(text: str) -> float | None:
    if text in ("NaN", "Infinity", "-Infinity"):
        return float(text)
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        return None
    value, mantissa = float(text), re.split("[eE]", text)[0]
    lost = math.isinf(value) or (value == 0 and re.search("[1-9]", mantissa))
    return None if lost else value


def read_float4(text: str) -> float | None:
    value = read_float(text)
    if value is None or not math.isfinite(value):
        return value
    try:
        (single,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return None
    return None if single == 0 and value != 0 else single


def show_float4(value: float) -> str:
    shortest = str(np.float32(value))
    return show_float(value) if not math.isfinite(value) else shortest.removesuffix(".0")


def show_float(value: float) -> str:
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return names.get(str(value), repr(value).removesuffix(".0"))


def numeric(precision: int, scale: int) -> Kind:
    """``numeric(p,s)``; where all digits are behind the point, Spark's type holds some more."""
    largest = Decimal(10**precision - 1).scaleb(-scale)
    limit, step = Decimal(10 ** max(precision - scale, 0)), Decimal(1).scaleb(-scale)

    def read(text: str) -> Decimal | None:
        if not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", text):
            return None
        value = Decimal(text)
        return value if abs(value) < limit and value == value.quantize(step) else None

    values = st.decimals(-largest, largest, places=scale)
    column = Column("n", 1700, (precision << 16 | scale) + 4)
    form = r"-?[0-9]{1,9}(\.[0-9]{1,5})?"
    return Kind(column, values, lambda value: f"{value:.{scale}f}", read, form=form)


def read_date(text: str) -> Any:
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return None
    return _or_none(date.fromisoformat, text)


def read_timestamp(text: str) -> Any:
    found = re.fullmatch(r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8})(?:\.([0-9]{1,6}))?", text)
    if found is None:
        return None
    return _or_none(datetime.fromisoformat, f"{found[1]}.{(found[2] or '').ljust(6, '0')}")


def show_timestamp(value: datetime) -> str:
    text = value.isoformat(" ")
    return text.rstrip("0") if "." in text else text


def micros(value: datetime) -> int:
    return (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def read_timestamptz(text: str) -> Any:
    return read_timestamp(text.removesuffix("+00")) if text.endswith("+00") else None


def read_bytea(text: str) -> bytes | None:
    return bytes.fromhex(text[2:]) if re.fullmatch(r"\\x([0-9a-fA-F]{2})*", text) else None


def quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def show_array(items: list[str | None]) -> str:
    shown = []
    for item in items:
        if item is None:
            shown.append("NULL")
        elif item == "" or item.upper() == "NULL" or re.search('[\\s"\\\\{},]', item, re.A):
            shown.append(quoted(item))
        else:
            shown.append(item)
    return "{" + ",".join(shown) + "}"


def _quoted_at(text: str, at: int) -> tuple[str, int] | None:
    """The string whose opening quote is at a place, and the place behind its closing quote."""
    value, at = "", at + 1
    while at < len(text) and text[at] != '"':
        at += text[at] == "\\"
        value += text[at : at + 1]
        at += 1
    return (value, at + 1) if at < len(text) else None


def read_array(text: str) -> list[str | None] | None:
    """One dimension, usual bounds, no spaces around items."""
    if text == "{}":
        return []
    items: list[str | None] = []
    at = 0
    while text[at : at + 1] == ("," if items else "{"):
        at += 1
        if text[at : at + 1] == '"':
            found = _quoted_at(text, at)
            if found is None:
                return None
            items.append(found[0])
            at = found[1]
            continue
        end = at
        while end < len(text) and text[end] not in ' \t\n\v\f\r"\\{},':
            end += 1
        if end == at:
            return None
        items.append(None if text[at:end].upper() == "NULL" else text[at:end])
        at = end
    return items if items and text[at:] == "}" else None


def read_int_array(text: str) -> list[int | None] | None:
    items = read_array(text)
    if items is None:
        return None
    numbers = [item if item is None else INT4.read(item) for item in items]
    return numbers if numbers.count(None) == items.count(None) else None


def show_hstore(value: dict[str, str | None]) -> str:
    pairs = (f"{quoted(k)}=>{'NULL' if v is None else quoted(v)}" for k, v in value.items())
    return ", ".join(pairs)


def read_hstore(text: str) -> dict[str, str | None] | None:
    found: dict[str, str | None] = {}
    at = 0
    while at < len(text):
        key = _quoted_at(text, at) if text[at] == '"' else None
        if key is None or key[0] in found or text[key[1] : key[1] + 2] != "=>":
            return None
        at = key[1] + 2
        if text[at : at + 4] == "NULL":
            found[key[0]], at = None, at + 4
        else:
            value = _quoted_at(text, at) if text[at : at + 1] == '"' else None
            if value is None:
                return None
            found[key[0]], at = value
        if at < len(text):
            if text[at : at + 2] != ", " or at + 2 == len(text):
                return None
            at += 2
    return found


def _or_none(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError:
        return None


FLOATS = r"-?[0-9]{1,3}(\.[0-9]{1,3})?e[+-][0-9]{1,3}"
DATES = "[0-2][0-9]{3}-[01][0-9]-[0-3][0-9]"
TIMES = rf"{DATES} [0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{{1,7}})?"
INT4 = integer(32)
moments = st.datetimes()
KINDS = [
    Kind(Column("b", 16), st.booleans(), lambda v: "t" if v else "f", {"t": True, "f": False}.get),
    integer(16),
    INT4,
    integer(64),
    Kind(Column("o", 26), st.integers(0, 2**32 - 1), str, read_oid, form="-?[0-9]{1,11}"),
    Kind(Column("f", 701), st.floats(), show_float, read_float, form=FLOATS),
    Kind(Column("f", 700), st.floats(width=32), show_float4, read_float4, form=FLOATS),
    numeric(10, 2),
    numeric(2, 4),
    Kind(Column("d", 1082), st.dates(), date.isoformat, read_date, form=DATES),
    Kind(Column("t", 1114), moments, show_timestamp, read_timestamp, form=TIMES),
    Kind(
        Column("z", 1184),
        moments,
        lambda v: show_timestamp(v) + "+00",
        read_timestamptz,
        micros,
        form=rf"{TIMES}\+0[01]",
    ),
    Kind(
        Column("x", 17),
        st.binary(max_size=8),
        lambda v: f"\\x{v.hex()}",
        read_bytea,
        form=r"\\x[0-9a-g]{0,5}",
    ),
    Kind(Column("a", 1009), st.lists(st.none() | strings, max_size=4), show_array, read_array),
    Kind(
        Column("i", 1007),
        st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=4),
        lambda v: show_array([item if item is None else str(item) for item in v]),
        read_int_array,
    ),
    Kind(
        Column("h", 17000, type_name="public.hstore"),
        st.dictionaries(strings, st.none() | strings, max_size=3),
        show_hstore,
        read_hstore,
    ),
]


def drawn(strategy: st.SearchStrategy[str]) -> list[str]:
    """Many texts at once: a query for each would take minutes."""
    texts: list[str] = []

    @settings(max_examples=TEXTS, phases=[Phase.generate], database=None, deadline=None)
    @given(strategy)
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    return texts


@st.composite
def tampered(draw: st.DrawFn, printed: st.SearchStrategy[str]) -> str:
    """A printed value with a character added, replaced or taken away."""
    text = draw(printed)
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.text(NOISE, max_size=1)) + text[at + draw(st.integers(0, 1)) :]


def test_exact_or_unrepresentable(spark: SparkSession) -> None:
    batches = []
    for kind in KINDS:
        printed = kind.values.map(kind.show)
        valid = drawn(printed)
        assert [text for text in valid if kind.read(text) is None] == []
        alike = st.from_regex(kind.form, fullmatch=True) if kind.form else strings
        framed = [text for value in valid[:5] for text in (f"{value}\n", f" {value}", f"{value} ")]
        batches.append([*valid, *framed, *drawn(tampered(printed)), *drawn(strings), *drawn(alike)])
    columns = [kind.column for kind in KINDS]
    found = decode_all(spark, list(zip(columns, batches, strict=True)))
    for kind, texts, outcomes in zip(KINDS, batches, found, strict=True):
        for text, outcome in zip(texts, outcomes, strict=True):
            value = kind.read(text)
            meaning = UNREPRESENTABLE if value is None else plain(kind.meant(value))
            exact = value is not None and kind.show(value) == text
            allowed = [meaning] if exact else [meaning, UNREPRESENTABLE]
            assert outcome in allowed, (kind.column.type_oid, text, outcome, meaning)


NUMBER = r"-?(0|[1-9][0-9]{0,%d})(\.[0-9]{1,%d}0{0,45})?"
NUMBERS = [
    *("0", "-0.5", "1.50", "0.0000000001", "0.00000000010", "0.00000000001", "NaN"),
    *("Infinity", "-Infinity", "9" * 28, "9" * 29, "1" + "0" * 27 + "." + "0" * 60),
    *("9" * 38, "9" * 39, "0." + "9" * 38, "0." + "9" * 39, "1." + "0" * 16383),
    *("1." + "0" * 16382 + "1", "1" * 131072, "99999.99", "100000.00", "0.5", "0.9", "1.0"),
]


@pytest.mark.parametrize("digits", [(38, 10), (38, 0), (38, 38), (7, 2), (1, 1), (1, 0)])
def test_unbounded_numeric(spark: SparkSession, digits: tuple[int, int]) -> None:
    """As a decimal: the exact value of every number that it holds, and nothing for any other."""
    precision, scale = digits
    kind, exactly = DecimalType(precision, scale), Context(prec=200_000)
    limit, step = Decimal(10) ** (precision - scale), Decimal(1).scaleb(-scale)

    def meaning(text: str) -> Any:
        value = Decimal(text)
        held = (
            value.is_finite()
            and value.copy_abs() < limit
            and value == value.quantize(step, None, exactly)
        )
        return value if held else UNREPRESENTABLE

    texts = list(NUMBERS)
    for most in ((precision - scale, scale or 1), (45, 45)):
        texts += drawn(st.from_regex(NUMBER % most, fullmatch=True))
    arrays = [f"{{NULL,{text}}}" for text in texts]
    domain = Column("d", 16500, type_name="public.price", base_oid=1700)
    large = Column("l", 1700, (39 << 16) + 4)
    cases = [(column, texts) for column in (Column("n", 1700), domain, large)]
    cases.append((Column("a", 1231), arrays))
    *scalars, items = decode_all(spark, cases, kind)
    plainly = decode(pa.array(texts), kind).to_pylist()
    together = decode(pa.array(arrays), ArrayType(kind)).to_pylist()
    for number, text in enumerate(texts):
        wanted = meaning(text)
        assert [found[number] for found in scalars] == [wanted] * 3, text
        bad = wanted == UNREPRESENTABLE
        assert items[number] == (UNREPRESENTABLE if bad else [None, wanted]), text
        assert plainly[number] == (None if bad else wanted), text
        assert together[number] == (None if bad else [None, wanted]), text
