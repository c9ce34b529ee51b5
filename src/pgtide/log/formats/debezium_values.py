"""Values as Debezium's Postgres connector converts them with its default settings.

Followed: boolean, integers, floats, ``decimal.handling.mode=precise`` (base64 of the
unscaled value; a struct with scale when the type has none), money, base64 bytea,
``time.precision.mode=adaptive``, ISO text for types with time zone, microsecond intervals,
bits, points, one-dimensional arrays of these. What is kept as Postgres text instead:
numeric NaN and infinities (Debezium stops), infinite dates and intervals, arrays of several
dimensions or other bounds, hstore, geometric types but point, PostGIS and vector types, and
domains.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pgtide import oids
from pgtide.log.formats import texts

_MONTH_US = 2_629_800_000_000  # a twelfth of 365.25 days
_DAY_US = 86_400_000_000
_INFINITE_US = {"infinity": 9223372036825200000, "-infinity": -9223372036832400000}


def convert(text: str, type_oid: int, typmod: int) -> Any:
    """One value as it stands in ``before`` or ``after``."""
    element = oids.ARRAY_ELEMENTS.get(type_oid)
    if element is not None:
        items = texts.parse_array(text)
        if items is None:
            return text
        return [None if item is None else convert(item, element, typmod) for item in items]
    converter = _CONVERTERS.get(type_oid)
    return text if converter is None else converter(text, typmod)


def _float(text: str, typmod: int) -> Any:
    # Kafka's JSON converter writes these three as strings, JSON has no other way.
    return text if text in ("NaN", "Infinity", "-Infinity") else float(text)


def _numeric(text: str, typmod: int) -> Any:
    value = Decimal(text)
    if not value.is_finite():
        return text
    scale = oids.numeric_scale(typmod)
    if len(text) > texts.MOST_DIGITS:
        return text
    if scale is None:
        own = max(0, -int(value.as_tuple().exponent))
        return {"scale": own, "value": _unscaled(value, own)}
    return _unscaled(value, scale)


def _money(text: str, typmod: int) -> Any:
    digits = text.replace("$", "").replace(",", "")
    return _unscaled(Decimal(digits), 2)


def _unscaled(value: Decimal, scale: int) -> str:
    sign, digits, exponent = value.as_tuple()
    # Not Decimal.scaleb: the context's precision would round long values.
    number = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    number = -number if sign else number
    length = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(length, "big", signed=True)).decode()


def _bytea(text: str, typmod: int) -> Any:
    return base64.b64encode(bytes.fromhex(text[2:])).decode()


def _date(text: str, typmod: int) -> Any:
    value = texts.days(text)
    return text if value is None else value


def _time(text: str, typmod: int) -> Any:
    micros = texts.clock(text)
    return micros // 1000 if 0 <= typmod <= 3 else micros


def _timestamp(text: str, typmod: int) -> Any:
    micros = texts.microseconds(text)
    if micros is None:
        return _INFINITE_US.get(text, text)
    return micros // 1000 if 0 <= typmod <= 3 else micros


def _timestamptz(text: str, typmod: int) -> Any:
    micros = texts.microseconds(text)
    if micros is None:
        return text
    day, clock = text.removesuffix(" BC").removesuffix("+00").split(" ")
    if text.endswith(" BC"):
        day = f"-{int(day[:-6]) - 1:04d}{day[-6:]}"
    whole, _, fraction = clock.partition(".")
    digits = fraction.ljust(6 if typmod < 0 else typmod, "0")
    return f"{day}T{whole}.{digits}Z" if digits else f"{day}T{whole}Z"


def _timetz(text: str, typmod: int) -> Any:
    moment = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=texts.clock_utc(text))
    return moment.time().isoformat() + "Z"


def _interval(text: str, typmod: int) -> Any:
    parts = texts.interval(text)
    if parts is None:
        return text
    months, days, micros = parts
    return months * _MONTH_US + days * _DAY_US + micros


def _bits(text: str, typmod: int) -> Any:
    if typmod == 1:
        return text == "1"
    length = (len(text) + 7) // 8
    return base64.b64encode(int(text or "0", 2).to_bytes(length, "little")).decode()


def _point(text: str, typmod: int) -> Any:
    x, y = (float(part) for part in text.strip("()").split(","))
    if not (math.isfinite(x) and math.isfinite(y)):
        return text  # JSON has no word for it
    well_known = struct.pack("<BIdd", 1, 1, x, y)
    return {"x": x, "y": y, "wkb": base64.b64encode(well_known).decode(), "srid": None}


_CONVERTERS: dict[int, Callable[[str, int], Any]] = {
    oids.BOOL: lambda text, typmod: text == "t",
    **dict.fromkeys(oids.INTEGERS, lambda text, typmod: int(text)),
    **dict.fromkeys(oids.FLOATS, _float),
    oids.NUMERIC: _numeric,
    oids.MONEY: _money,
    oids.BYTEA: _bytea,
    oids.DATE: _date,
    oids.TIME: _time,
    oids.TIMESTAMP: _timestamp,
    oids.TIMESTAMPTZ: _timestamptz,
    oids.TIMETZ: _timetz,
    oids.INTERVAL: _interval,
    oids.BIT: _bits,
    oids.VARBIT: _bits,
    oids.POINT: _point,
}
