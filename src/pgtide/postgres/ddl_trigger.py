"""The DDL trigger: its SQL, whether it is installed as it should be, and its key.

``ddl_trigger.sql`` explains what the trigger sends, ``capture/ddl.py`` reads it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.settings import read_value

PREFIX = "pgtide.ddl"
"""Prefix of the logical messages that the trigger sends."""
SPACER_PREFIX = "pgtide.spacer"
"""Prefix of the empty one behind each, which keeps it before the rows that follow."""

TRIGGERS = ("_pgtide_ddl_command_end", "_pgtide_sql_drop", "_pgtide_table_rewrite")
SETTINGS_KEY = "ddl_trigger"
INNER_PADDING = 0x36  # RFC 2104


@dataclass(frozen=True, slots=True)
class TriggerState:
    """What is there of the trigger."""

    missing: tuple[str, ...]
    disabled: tuple[str, ...]
    """Triggers that do not fire in every session (ENABLE ALWAYS)."""
    current: bool
    """Whether the functions are those of this release."""

    @property
    def complete(self) -> bool:
        return not self.missing and not self.disabled and self.current


def script() -> str:
    """The SQL that installs the trigger, or brings an older one up to date."""
    text = resources.files("pgtide.postgres").joinpath("ddl_trigger.sql").read_text("utf-8")
    return text + (
        "INSERT INTO pgtide.settings (key, value) VALUES"
        f" ('{SETTINGS_KEY}', jsonb_build_object('digest', '{_digest(text)}'))\n"
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value;\n"
    )


def read_state(conn: SqlConnection) -> TriggerState:
    """Compare what is installed with what ``script`` would install."""
    rows = conn.execute(
        "SELECT evtname, evtenabled FROM pg_event_trigger WHERE evtname = ANY(%s)",
        [list(TRIGGERS)],
    ).fetchall()
    enabled = {name: str(mode) for name, mode in rows}
    text = resources.files("pgtide.postgres").joinpath("ddl_trigger.sql").read_text("utf-8")
    installed = (
        read_value(conn, SETTINGS_KEY) if len(enabled) and _may_read_settings(conn) else None
    )
    return TriggerState(
        missing=tuple(name for name in TRIGGERS if name not in enabled),
        disabled=tuple(name for name, mode in enabled.items() if mode not in ("A", b"A")),
        current=installed is not None and installed.get("digest") == _digest(text),
    )


def read_key(conn: SqlConnection) -> bytes | None:
    """The key that messages are signed with; None when there is no trigger."""
    row = conn.execute("SELECT to_regclass('pgtide.secret') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return None
    pad = conn.execute("SELECT inner_pad FROM pgtide.secret").fetchone()
    return bytes(byte ^ INNER_PADDING for byte in pad[0]) if pad else None


def _may_read_settings(conn: SqlConnection) -> bool:
    row = conn.execute(
        "SELECT has_schema_privilege('pgtide', 'USAGE')"
        " AND has_table_privilege(to_regclass('pgtide.settings'), 'SELECT')"
    ).fetchone()
    return bool(row and row[0])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
