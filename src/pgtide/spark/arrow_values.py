"""Postgres texts as typed Arrow arrays: what ``codecs`` does, where there is no JVM.

Every text has the value that the codec of its column gives it, or none where the codec gives
none. Everything is vectorised but for arrays and hstore, whose texts are taken apart one by one.
Arrow's errors name the value that they are about, so none of them leaves this module.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from pgtide import oids, shape
from pgtide.spark.codecs import MAX_OID

pc: Any = compute  # its stubs know fewer kinds of arguments than the functions take

Array: TypeAlias = Any  # a pa.Array; what computing gives is not typed

_INTEGER = r"0|-?[1-9]\d{0,18}"
_FLOAT = r"-?\d{1,400}(?:\.\d{1,400})?(?:e[+-]\d{1,3})?|NaN|-?Infinity"
# Arrow's expressions cannot look ahead, so the year 0 is left out by spelling the others.
_DATE = r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])-\d\d-\d\d"
_TIMESTAMP = rf"{_DATE} \d\d:\d\d:\d\d(?:\.\d{{1,6}})?"
_BYTEA = r"\\x(?:[0-9a-fA-F]{2})*"

# As in array_text; \s is ASCII for Java.
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_TOKEN = re.compile(rf'{_QUOTED}|[^",{{}}\\\s]++', re.DOTALL | re.ASCII)
_PAIR = re.compile(rf"({_QUOTED})=>(?:({_QUOTED})|NULL)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

_NIBBLES = np.zeros(256, np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _NIBBLES[list(_digits)] = range(16)


def holds_oids(column: shape.Column) -> bool:
    """Whether values, or elements, are oids: longs like bigint, but of another range."""
    known = (column.type_oid, column.base_oid, column.element_oid)
    return any(oids.OID in (oid, oids.ARRAY_ELEMENTS.get(oid)) for oid in known)


def decode(texts: Array, spark_type: DataType, *, oid: bool = False) -> Array:
    """The values of a codec's type; NULL where the text is NULL or has no value."""
    arrow_type = to_arrow_type(spark_type)
    match spark_type:
        case StringType():
            return texts
        case ShortType() | IntegerType() | LongType():
            return _integers(texts, arrow_type, oid)
        case FloatType() | DoubleType():
            return _floats(texts, arrow_type)
        case DecimalType():
            return _decimals(texts, spark_type)
        case BooleanType():
            known = pc.is_in(texts, pa.array(["t", "f"]))
            return pc.if_else(known, pc.equal(texts, "t"), None)
        case DateType():
            return _cast(_guarded(texts, _DATE), arrow_type)
        case TimestampNTZType():
            return _cast(_guarded(texts, _TIMESTAMP), arrow_type)
        case TimestampType():
            fitting = _guarded(texts, rf"(?:{_TIMESTAMP})\+00")
            in_utc = pc.utf8_slice_codeunits(fitting, 0, -len("+00"))
            return _cast(in_utc, pa.timestamp("us")).cast(arrow_type)
        case BinaryType():
            return _binaries(_guarded(texts, _BYTEA))
        case ArrayType(elementType=element):
            return _arrays(texts, element, arrow_type, oid)
        case MapType():
            return pa.array([_pairs(text) for text in texts.to_pylist()], arrow_type)
    raise NotImplementedError(f"no Arrow values for {spark_type.simpleString()}")


def _guarded(texts: Array, pattern: str) -> Array:
    """The texts that fit a pattern."""
    return pc.if_else(pc.match_substring_regex(texts, rf"\A(?:{pattern})\z"), texts, None)


def _cast(texts: Array, arrow_type: pa.DataType) -> Array:
    """A cast with NULL for what Arrow refuses, which is found by halving: it is rare."""
    try:
        return texts.cast(arrow_type)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.array([None], arrow_type)
    middle = len(texts) // 2
    return pa.concat_arrays([_cast(texts[:middle], arrow_type), _cast(texts[middle:], arrow_type)])


def _integers(texts: Array, arrow_type: pa.DataType, oid: bool) -> Array:
    values = _cast(_guarded(texts, _INTEGER), pa.int64())
    bits = 8 * np.dtype(arrow_type.to_pandas_dtype()).itemsize
    low, high = (0, MAX_OID) if oid else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    within = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    return pc.if_else(within, values, None).cast(arrow_type)


def _decimals(texts: Array, spark_type: DecimalType) -> Array:
    precision, scale = spark_type.precision, spark_type.scale
    digits = rf"\d{{1,{scale}}}0*" if scale else "0+"
    fitting = _guarded(texts, rf"-?\d{{1,{precision}}}(?:\.{digits})?")
    # Arrow counts zeros behind the last digit that fits, and may find them too many.
    last = rf"(\.\d{{{scale}}})" if scale else r"()\."
    fitting = pc.replace_substring_regex(fitting, rf"{last}0+\z", r"\1")
    # Arrow does not notice when the digits before the point are too many, and wraps around.
    fitting = _guarded(fitting, rf"-?0*\d{{0,{precision - scale}}}(?:\.\d+)?")
    return _cast(fitting, to_arrow_type(spark_type))


def _floats(texts: Array, arrow_type: pa.DataType) -> Array:
    values = _cast(_guarded(texts, _FLOAT), arrow_type)
    named = pc.is_in(texts, pa.array(["NaN", "Infinity", "-Infinity"]))
    # Too large a number becomes infinity, too small a one zero.
    zero = pc.is_in(texts, pa.array(["0", "-0"]))
    exact = pc.and_(pc.is_finite(values), pc.or_(pc.not_equal(values, 0), zero))
    return pc.if_else(pc.or_(named, exact), values, None)


def _binaries(texts: Array) -> Array:
    """Of texts that are \\x and pairs of digits; all of them at once."""
    digits = pc.utf8_slice_codeunits(pc.fill_null(texts, "\\x"), 2)
    lengths = pc.binary_length(digits).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    data = digits.buffers()[2]
    characters = np.frombuffer(data, np.uint8)[: offsets[-1]] if data else np.zeros(0, np.uint8)
    nibbles = _NIBBLES[characters]
    packed = (nibbles[0::2] << 4) | nibbles[1::2]
    places: Any = (offsets // 2).astype(np.int32)
    data_bytes: Any = packed
    buffers = [None, pa.py_buffer(places), pa.py_buffer(data_bytes)]
    values = pa.Array.from_buffers(pa.binary(), len(texts), buffers)
    return pc.if_else(texts.is_valid(), values, None)


def _arrays(texts: Array, element: DataType, arrow_type: pa.DataType, oid: bool) -> Array:
    rows = [_elements(text) for text in texts.to_pylist()]
    lengths = np.array([len(row or ()) for row in rows], np.int64)
    flat = pa.array([item for row in rows for item in row or ()], pa.string())
    values = decode(flat, element, oid=oid)
    missing = np.array([row is None for row in rows], bool)
    bad = pc.and_(values.is_null(), flat.is_valid()).to_numpy(zero_copy_only=False)
    # One element without a value, and the whole has none.
    missing[np.repeat(np.arange(len(rows)), lengths)[bad]] = True
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, type=arrow_type, mask=pa.array(missing))


def _elements(text: str | None) -> list[str | None] | None:
    if text is None:
        return None
    tokens = _TOKEN.findall(text)
    if "{" + ",".join(tokens) + "}" != text:
        return None
    return [
        _unquoted(token) if token[0] == '"' else None if token.lower() == "null" else token
        for token in tokens
    ]


def _pairs(text: str | None) -> list[tuple[str, str | None]] | None:
    if text is None:
        return None
    found = list(_PAIR.finditer(text))
    pairs = {_unquoted(pair[1]): None if pair[2] is None else _unquoted(pair[2]) for pair in found}
    whole = ", ".join(pair[0] for pair in found) == text
    return list(pairs.items()) if whole and len(pairs) == len(found) else None


def _unquoted(token: str) -> str:
    return _ESCAPED.sub(r"\1", token[1:-1])
