"""Object ids of built-in types that are treated in a special way; they never change."""

from __future__ import annotations

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID = 16, 17, 20, 21, 23, 25, 26
JSON, POINT, FLOAT4, FLOAT8, MONEY, VARCHAR = 114, 600, 700, 701, 790, 1043
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, TIMETZ = 1082, 1083, 1114, 1184, 1186, 1266
BIT, VARBIT, NUMERIC, UUID, JSONB = 1560, 1562, 1700, 2950, 3802

INTEGERS = frozenset({INT2, INT4, INT8, OID})
FLOATS = frozenset({FLOAT4, FLOAT8})

ARRAY_ELEMENTS = {
    1000: BOOL,
    1001: BYTEA,
    1005: INT2,
    1007: INT4,
    1009: TEXT,
    1015: VARCHAR,
    1016: INT8,
    1021: FLOAT4,
    1022: FLOAT8,
    1028: OID,
    1182: DATE,
    1183: TIME,
    1115: TIMESTAMP,
    1185: TIMESTAMPTZ,
    1231: NUMERIC,
    1270: TIMETZ,
    199: JSON,
    3807: JSONB,
    2951: UUID,
    1014: 1042,  # bpchar
    1041: 869,  # inet
    651: 650,  # cidr
    1040: 829,  # macaddr
    775: 774,  # macaddr8
}
"""Element type by array type."""


FIRST_USER_OID = 16384
"""Types of users and extensions have this or a larger oid, which differs between databases."""


def numeric_precision(typmod: int) -> int | None:
    """Digits in all of ``numeric(p, s)``, None when the type does not say."""
    return None if typmod < 4 else (typmod - 4) >> 16 & 0xFFFF


def numeric_scale(typmod: int) -> int | None:
    """Digits after the point of ``numeric(p, s)``, None when the type does not say."""
    if typmod < 4:
        return None
    scale = (typmod - 4) & 0x7FF
    return scale - 0x800 if scale & 0x400 else scale
