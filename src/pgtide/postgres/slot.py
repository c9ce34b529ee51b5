"""The replication slot: its state, making it, dropping it, and the lock that guards it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgtide.errors import SlotBusy
from pgtide.position import Lsn
from pgtide.postgres.connection import (
    SqlConnection,
    connect_replication,
    run,
    translate,
)
from pgtide.postgres.settings import start_key

PLUGIN = "pgoutput"


@dataclass(frozen=True, slots=True)
class SlotState:
    """One row of ``pg_replication_slots``; what a release does not know yet is None."""

    name: str
    exists: bool = False
    plugin: str | None = None
    database: str | None = None
    active_pid: int | None = None
    restart_lsn: Lsn | None = None
    confirmed_flush_lsn: Lsn | None = None
    wal_status: str | None = None
    """reserved, extended, unreserved or lost."""
    safe_wal_size: int | None = None
    """Bytes that may still be written before the slot is in danger; None: no limit."""
    retained_bytes: int | None = None
    invalidation_reason: str | None = None  # 17+
    conflicting: bool | None = None  # 16+
    two_phase: bool = False
    failover: bool | None = None  # 17+
    temporary: bool = False

    @property
    def invalid(self) -> bool:
        return self.wal_status == "lost" or self.invalidation_reason is not None


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """A new slot, and the walsender whose next command ends the exported snapshot."""

    consistent_point: Lsn
    snapshot: str
    system_identifier: str
    timeline: int


def capture_lock_key(slot: str) -> sql.Composed:
    """The two integers of the advisory lock that a capture of this slot holds, as SQL."""
    return sql.SQL("hashtext('pgtide'), hashtext({})").format(sql.Literal(slot))


def read_slot(conn: SqlConnection, slot: str) -> SlotState:
    """The slot as it is now; ``exists`` is false when there is none."""
    # As JSON: each release has added columns, and asking for one too many is an error.
    row = conn.execute(
        """
        SELECT to_jsonb(s), pg_wal_lsn_diff(
            CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                 ELSE pg_current_wal_lsn() END, s.restart_lsn)::bigint
        FROM pg_replication_slots s WHERE slot_name = %s
        """,
        [slot],
    ).fetchone()
    if row is None:
        return SlotState(slot)
    facts: dict[str, Any] = row[0]
    return SlotState(
        name=slot,
        exists=True,
        plugin=facts["plugin"],
        database=facts["database"],
        active_pid=facts["active_pid"],
        restart_lsn=_lsn(facts["restart_lsn"]),
        confirmed_flush_lsn=_lsn(facts["confirmed_flush_lsn"]),
        wal_status=facts["wal_status"],
        safe_wal_size=facts["safe_wal_size"],
        retained_bytes=row[1],
        invalidation_reason=facts.get("invalidation_reason"),
        conflicting=facts.get("conflicting"),
        two_phase=bool(facts.get("two_phase")),
        failover=facts.get("failover"),
        temporary=facts["temporary"],
    )


class SlotCreation:
    """Creates the slot on entering; its exported snapshot can be used until leaving."""

    def __init__(
        self,
        url: str,
        slot: str,
        *,
        version: int,
        failover: bool = False,
        temporary: bool = False,
        application_name: str = "pgtide init",
    ) -> None:
        self._conn = connect_replication(url, application_name=application_name)
        options = "(SNAPSHOT 'export'" + (", FAILOVER true)" if failover else ")")
        if version < 150_000:
            options = "EXPORT_SNAPSHOT"
        name = sql.Identifier(slot).as_string(None)
        kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
        self._command = f"CREATE_REPLICATION_SLOT {name} {kind} {PLUGIN} {options}"

    def __enter__(self) -> CreatedSlot:
        try:
            system = run(self._conn, "IDENTIFY_SYSTEM")
            created = run(self._conn, self._command)
        except BaseException:
            self._conn.close()
            raise
        return CreatedSlot(
            consistent_point=Lsn.parse((created.get_value(0, 1) or b"").decode()),
            snapshot=(created.get_value(0, 2) or b"").decode(),
            system_identifier=(system.get_value(0, 0) or b"").decode(),
            timeline=int(system.get_value(0, 1) or b"0"),
        )

    def cancel(self) -> None:
        """Let the server give up, if another thread waits for it; safe to call from any."""
        self._conn.cancel()

    def __exit__(self, *_: object) -> None:
        self._conn.close()


def creation_sql(slot: str, *, failover: bool) -> str:
    """The same in plain SQL, for a script: without a snapshot, but with a note where it began."""
    more = ", failover => true" if failover else ""
    template = sql.SQL(
        "INSERT INTO pgtide.settings (key, value)\n"
        "SELECT {}, to_jsonb(lsn::text) FROM pg_create_logical_replication_slot({}, {}"
        + more
        + ")\nON CONFLICT (key) DO UPDATE SET value = excluded.value"
    )
    return template.format(
        sql.Literal(start_key(slot)), sql.Literal(slot), sql.Literal(PLUGIN)
    ).as_string(None)


def drop_slot(conn: SqlConnection, slot: str) -> None:
    """Drop the slot if it is there; SlotBusy while someone uses it."""
    try:
        conn.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = %s",
            [slot],
        )
    except psycopg.Error as exc:
        raise translate(exc) from exc


def capture_pids(conn: SqlConnection, slot: str) -> list[int]:
    """The backends that use the slot or hold its lock: a capture is attached."""
    locked = sql.SQL(
        """
        SELECT active_pid FROM pg_replication_slots
        WHERE slot_name = {slot} AND active_pid IS NOT NULL
        UNION
        SELECT l.pid FROM pg_locks l, (SELECT {key}) AS k(one, two)
        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND l.classid = (k.one::bigint & 4294967295)::oid
          AND l.objid = (k.two::bigint & 4294967295)::oid
        """
    ).format(slot=sql.Literal(slot), key=capture_lock_key(slot))
    return sorted(pid for (pid,) in conn.execute(locked))


def reading_pid(conn: SqlConnection, slot: str) -> int | None:
    """The backend that reads the slot, or its temporary copy for the bulk gear."""
    row = conn.execute(
        "SELECT active_pid FROM pg_replication_slots"
        " WHERE active_pid = ANY(%s) ORDER BY slot_name = %s DESC",
        [capture_pids(conn, slot), slot],
    ).fetchone()
    return None if row is None else row[0]


def refuse_while_captured(conn: SqlConnection, slot: str) -> None:
    """Raise SlotBusy when a capture is attached."""
    if pids := capture_pids(conn, slot):
        raise SlotBusy(
            f"a capture is attached to slot {slot}",
            detail=f"Server processes {', '.join(map(str, pids))} use it.",
            hint="Stop the capture first, or run: pgtide destroy --force",
        )


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)
