"""``pgtide destroy``: removes what ``init`` made at the source, and nothing else.

The slot goes first: it is what holds back WAL, and a capture that is still
attached shows itself there. Schema and triggers stay as long as another slot
of the same database was made by ``init``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgtide.config import Config
from pgtide.errors import PrivilegeMissing, SlotBusy, SourceError
from pgtide.postgres.connection import SqlConnection, connect, translate
from pgtide.postgres.ddl_trigger import TRIGGERS
from pgtide.postgres.publication import drop_sql, publication_names
from pgtide.postgres.rights import read_role
from pgtide.postgres.settings import read_slot_settings, recorded_slots, slot_key, start_key
from pgtide.postgres.slot import PLUGIN, capture_pids, drop_slot, read_slot, refuse_while_captured

FORCE_TIMEOUT_S = 10.0
RETRY_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class DestroyResult:
    """What is gone, and what ``init`` may have set on objects of others and that stays."""

    removed: list[str]
    left: list[str]


def destroy(config: Config, *, force: bool = False) -> DestroyResult:
    """Remove slot, publications, triggers and schema."""
    slot = config.source.slot
    with connect(config.source.admin.reveal(), application_name="pgtide destroy") as conn:
        try:
            # Of a source that cutover has left read-only this is what comes next.
            conn.execute("SET default_transaction_read_only = off")
            if not force:
                refuse_while_captured(conn, slot)
            done = _remove_slot(conn, slot, force=force)
            with conn.transaction():
                done += _remove_publications(conn, slot)
                done += _remove_schema(conn, slot)
            return DestroyResult(done, _left_behind(conn, config))
        except psycopg.errors.InsufficientPrivilege as exc:
            raise PrivilegeMissing(
                "this role may not remove what init made",
                detail=f"{exc.diag.message_primary}.",
                hint="Set source.admin_url to the role that ran pgtide init.",
            ) from exc
        except psycopg.Error as exc:
            raise translate(exc) from exc


def _remove_slot(conn: SqlConnection, slot: str, *, force: bool) -> list[str]:
    state = read_slot(conn, slot)
    if not state.exists:
        # A capture between two connections may still hold the lock.
        if force:
            _terminate(conn, slot)
        return []
    if state.plugin != PLUGIN or state.database != conn.info.dbname:
        raise SourceError(
            f"slot {slot} belongs to something else",
            detail=f"Its plugin is {state.plugin} and its database {state.database}.",
        )
    deadline = time.monotonic() + FORCE_TIMEOUT_S
    while True:
        # A capture that lost its connection comes back: be faster than it is.
        if force:
            _terminate(conn, slot)
        try:
            drop_slot(conn, slot)
            return [f"replication slot {slot}"]
        except SlotBusy:
            if not force or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_INTERVAL_S)


def _terminate(conn: SqlConnection, slot: str) -> None:
    for pid in capture_pids(conn, slot):
        conn.execute("SELECT pg_terminate_backend(%s)", [pid])


def _remove_publications(conn: SqlConnection, slot: str) -> list[str]:
    recorded = read_slot_settings(conn, slot)
    # Without a record the publication of that name is somebody else's.
    ours = set(recorded.publications) if recorded else set()
    names = [name for name in publication_names(conn, slot) if name in ours]
    for name in names:
        conn.execute(drop_sql(name).encode())
    return [f"publication {name}" for name in names]


def _remove_schema(conn: SqlConnection, slot: str) -> list[str]:
    slots = recorded_slots(conn)
    if slot in slots:
        keys = [slot_key(slot), start_key(slot)]
        conn.execute("DELETE FROM pgtide.settings WHERE key = ANY(%s)", [keys])
    others = [name for name in slots if name != slot]
    if others:
        return [f"settings of slot {slot}; schema pgtide stays for slot {', '.join(others)}"]
    row = conn.execute("SELECT to_regnamespace('pgtide') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return []
    for trigger in TRIGGERS:
        conn.execute(sql.SQL("DROP EVENT TRIGGER IF EXISTS {}").format(sql.Identifier(trigger)))
    row = conn.execute("SELECT to_regclass('pgtide.progress') IS NOT NULL").fetchone()
    if row is not None and row[0]:
        stays = "the rest of it stays, for pipelines that write to this database"
        made = f"what init made in schema pgtide; {stays}"
        return ["DDL event triggers", made] if _remove_own_objects(conn) else []
    conn.execute("DROP SCHEMA pgtide CASCADE")
    return ["DDL event triggers", "schema pgtide"]


def _remove_own_objects(conn: SqlConnection) -> bool:
    """Of a database that is a target too: how far that is must not be forgotten.

    Whether there was anything.
    """
    functions = conn.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p"
        " WHERE p.pronamespace = 'pgtide'::regnamespace"
        " AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgfoid = p.oid)"  # of the target's tables
    ).fetchall()
    for (name,) in functions:
        conn.execute(f"DROP FUNCTION {name} CASCADE".encode())
    row = conn.execute("SELECT to_regclass('pgtide.settings') IS NOT NULL").fetchone()
    conn.execute("DROP TABLE IF EXISTS pgtide.secret, pgtide.settings")
    return bool(functions) or bool(row and row[0])


def _left_behind(conn: SqlConnection, config: Config) -> list[str]:
    rows = conn.execute(
        "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind = 'r' AND c.relreplident = 'f' AND n.nspname !~ '^(pg_|information_)'"
        " ORDER BY 1"
    ).fetchall()
    left = []
    if rows:
        names = ", ".join(name for (name,) in rows)
        left.append(
            f"REPLICA IDENTITY FULL of {names}"
            " (ALTER TABLE … REPLICA IDENTITY DEFAULT takes it back)"
        )
    with connect(config.source.url.reveal(), application_name="pgtide destroy") as own:
        role = read_role(own)
    if role.replication and not role.superuser:
        left.append(f"role {role.name} may replicate")
    return left
