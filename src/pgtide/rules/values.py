"""The value of a filter, read as the type of the column it is compared with. No Spark here."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from decimal import Decimal, InvalidOperation

from pgtide.errors import ConfigError
from pgtide.rules.kinds import Kind

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_ZONE_HOURS = re.compile(r"(?<=\d)([+-]\d\d)$")


def number(text: str) -> Decimal:
    """An exact number; digits are never lost."""
    try:
        found = Decimal(text.strip())
    except InvalidOperation:
        raise _unfit(Kind.NUMBER, "write it as 12 or '12.50'") from None
    if not found.is_finite():
        raise _unfit(Kind.NUMBER, "NaN and Infinity cannot be compared with")
    return found


def comparable(kind: Kind, text: str) -> str:
    """The value as Postgres prints one of this kind, so that texts compare as values do."""
    match kind:
        case Kind.NUMBER:
            return f"{number(text):f}"
        case Kind.FLOAT:
            return repr(float(number(text)))
        case Kind.BOOLEAN:
            return _boolean(text)
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _moment(kind, text)
        case Kind.TIME:
            return _time(text)
        case Kind.UUID:
            return _uuid(text)
        case _:
            return text


def _boolean(text: str) -> str:
    if text not in ("true", "false"):
        raise _unfit(Kind.BOOLEAN, "write true or false")
    return text


def _moment(kind: Kind, text: str) -> str:
    """``2024-05-01 12:00:00.5`` in UTC; a date alone for a date."""
    text = text.strip()
    try:
        if kind is Kind.DATE and _DATE.fullmatch(text):
            return dt.date.fromisoformat(text).isoformat()
        moment = dt.datetime.fromisoformat(_ZONE_HOURS.sub(r"\1:00", text))
        if moment.tzinfo is not None:
            moment = moment.astimezone(dt.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise _unfit(kind, "write it as 2024-05-01 or 2024-05-01T12:00:00Z") from None
    return _without_zeros(moment.isoformat(" "))


def _time(text: str) -> str:
    try:
        return _without_zeros(dt.time.fromisoformat(text.strip()).replace(tzinfo=None).isoformat())
    except ValueError:
        raise _unfit(Kind.TIME, "write it as '12:00:00'") from None


def _without_zeros(text: str) -> str:
    return text.rstrip("0") if "." in text else text


def _uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text.strip()))
    except ValueError:
        raise _unfit(Kind.UUID, "write it as 32 hexadecimal digits") from None


def _unfit(kind: Kind, hint: str) -> ConfigError:
    """Without the value itself, which may come from the environment."""
    return ConfigError(f"its value is not {kind.value}", hint=hint)
