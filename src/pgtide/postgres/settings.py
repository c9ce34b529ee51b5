"""The table ``pgtide.settings`` at the source: what ``init`` made, for whoever comes later.

One row per slot, key ``slot/<name>``: the publications that belong to it and
how they looked when ``init`` made them. Capture compares; the DDL trigger looks
there to know which publications are ours; ``destroy`` removes what it names.
Key ``start/<name>``: where the slot began, by which an unused one is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection

FORMAT = 1

SCHEMA_SQL = """\
CREATE SCHEMA IF NOT EXISTS pgtide;
REVOKE ALL ON SCHEMA pgtide FROM PUBLIC;
CREATE TABLE IF NOT EXISTS pgtide.settings (
    key text PRIMARY KEY,
    value jsonb NOT NULL
);
REVOKE ALL ON pgtide.settings FROM PUBLIC;
"""


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """What ``init`` recorded for one slot."""

    publications: tuple[str, ...]
    fingerprint: Mapping[str, Any]
    keyless: str
    tables: tuple[str, ...]


def slot_key(slot: str) -> str:
    """The key of a slot's row."""
    return f"slot/{slot}"


def settings_exist(conn: SqlConnection) -> bool:
    """Whether ``init`` ever ran in this database."""
    row = conn.execute("SELECT to_regclass('pgtide.settings') IS NOT NULL").fetchone()
    return bool(row and row[0])


def read_value(conn: SqlConnection, key: str) -> Any:
    """One setting as Python data; None when the table or the row is not there."""
    if not settings_exist(conn):
        return None
    row = conn.execute("SELECT value FROM pgtide.settings WHERE key = %s", [key]).fetchone()
    return row[0] if row else None


def read_slot_settings(conn: SqlConnection, slot: str) -> SlotSettings | None:
    """What ``init`` recorded for the slot; None when it never ran for it."""
    value = read_value(conn, slot_key(slot))
    if value is None:
        return None
    return SlotSettings(
        publications=tuple(value["publications"]),
        fingerprint=value["fingerprint"],
        keyless=value["keyless"],
        tables=tuple(value["tables"]),
    )


def start_key(slot: str) -> str:
    """The key of the row that holds where the slot began."""
    return f"start/{slot}"


def read_start(conn: SqlConnection, slot: str) -> Lsn | None:
    """Where the slot began; None when nobody wrote it down."""
    value = read_value(conn, start_key(slot))
    return Lsn.parse(value) if value else None


def write_start(conn: SqlConnection, slot: str, start: Lsn) -> None:
    """Remember where the slot began, if this role may: it only helps after a crash."""
    row = conn.execute(
        "SELECT has_table_privilege('pgtide.settings', 'INSERT')"
        " AND has_table_privilege('pgtide.settings', 'UPDATE')"
    ).fetchone()
    if row and row[0]:
        conn.execute(
            "INSERT INTO pgtide.settings (key, value) VALUES (%s, to_jsonb(%s::text))"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [start_key(slot), str(start)],
        )


def recorded_slots(conn: SqlConnection) -> list[str]:
    """The slots of this database that ``init`` ran for."""
    if not settings_exist(conn):
        return []
    rows = conn.execute("SELECT substr(key, 6) FROM pgtide.settings WHERE key LIKE 'slot/%'")
    return sorted(name for (name,) in rows)
