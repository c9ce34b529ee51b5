"""A column of a row on its way through the rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import types as t

from pgtide.rules.kinds import Field, Kind, kind_of

_KINDS: dict[type[t.DataType], Kind] = {
    t.StringType: Kind.TEXT,
    t.BooleanType: Kind.BOOLEAN,
    t.FloatType: Kind.FLOAT,
    t.DoubleType: Kind.FLOAT,
    t.DecimalType: Kind.NUMBER,
    t.ByteType: Kind.NUMBER,
    t.ShortType: Kind.NUMBER,
    t.IntegerType: Kind.NUMBER,
    t.LongType: Kind.NUMBER,
    t.DateType: Kind.DATE,
    t.TimestampNTZType: Kind.TIMESTAMP,
    t.TimestampType: Kind.TIMESTAMPTZ,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One column of a row: what it is called, its type, and expressions for its value."""

    name: str
    type: t.DataType
    value: Column
    """Typed; NULL where the text is NULL or the type cannot hold it."""
    text: Column
    """As Postgres prints it."""
    sent: Column | None
    """False where the server did not send the value; None: always sent."""
    type_oid: int
    """The Postgres type, of a domain the one below it; 0: computed, ``type`` says it all.

    Comparing needs it: a ``numeric`` without precision may be a string in Spark.
    """
    attnum: int | None = None
    """The column at the source that this was; a rule keeps it, so that a rename is a rename."""
    key: bool = False
    """Whether it is part of what identifies a row, under whatever name."""
    any_number: bool = False
    """Whether it is a ``numeric`` without precision of which ``type`` holds some numbers only."""

    salted: bool = False
    """Whether a hash is part of it: no SQL can read it, see ``expression``."""

    @property
    def kind(self) -> Kind:
        if self.type_oid:
            return kind_of(self.type_oid)
        return _KINDS.get(type(self.type), Kind.OTHER)

    @property
    def field(self) -> Field:
        return Field(self.name, self.kind)


def all_sent(cells: Iterable[Cell]) -> Column | None:
    """True where the server sent every one of these; None: it always does."""
    marks = [cell.sent for cell in cells if cell.sent is not None]
    return reduce(Column.__and__, marks) if marks else None
