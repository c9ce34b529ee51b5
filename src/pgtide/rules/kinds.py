"""What rules have to know of a Postgres type: how its values compare. No Spark here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pgtide import oids
from pgtide.config.rules import Operator

_BPCHAR, _NAME, _UUID = 1042, 19, 2950


class Kind(Enum):
    """Types that compare alike; the value is how people call them."""

    TEXT = "text"
    NUMBER = "a number"
    FLOAT = "a floating-point number"
    BOOLEAN = "boolean"
    DATE = "a date"
    TIMESTAMP = "a timestamp"
    TIMESTAMPTZ = "a timestamp with time zone"
    TIME = "a time of day"
    UUID = "a uuid"
    OTHER = "of a type without order here"
    """Compared by the text that Postgres prints, for equality only."""
    UNKNOWN = "computed"
    """The result of an SQL expression, while there is no Spark to ask for its type."""


_BY_OID = {
    **dict.fromkeys((oids.TEXT, oids.VARCHAR, _BPCHAR, _NAME), Kind.TEXT),
    **dict.fromkeys((*oids.INTEGERS, oids.NUMERIC), Kind.NUMBER),
    **dict.fromkeys(oids.FLOATS, Kind.FLOAT),
    oids.BOOL: Kind.BOOLEAN,
    oids.DATE: Kind.DATE,
    oids.TIMESTAMP: Kind.TIMESTAMP,
    oids.TIMESTAMPTZ: Kind.TIMESTAMPTZ,
    oids.TIME: Kind.TIME,
    _UUID: Kind.UUID,
}

_EQUALITY: frozenset[Operator] = frozenset({"eq", "ne", "in", "is_null"})
_ORDER: frozenset[Operator] = _EQUALITY | {"gt", "lt", "gte", "lte"}


@dataclass(frozen=True, slots=True)
class Field:
    """A column as far as rules can be judged without its values."""

    name: str
    kind: Kind


def kind_of(type_oid: int) -> Kind:
    return _BY_OID.get(type_oid, Kind.OTHER)


def is_padded(type_oid: int) -> bool:
    """Whether blanks at the end mean nothing: ``character(n)``."""
    return type_oid == _BPCHAR


def operators(kind: Kind) -> frozenset[Operator]:
    """The operators that mean something for values of this kind."""
    if kind in (Kind.TEXT, Kind.UNKNOWN):
        return _ORDER | {"contains"}
    return _EQUALITY if kind in (Kind.BOOLEAN, Kind.OTHER) else _ORDER
