"""Checks of the server and the session: release, settings, room, rights, path to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from pgtide.config import Source
from pgtide.errors import PgtideError
from pgtide.postgres.catalog import ServerFacts
from pgtide.postgres.connection import (
    SqlConnection,
    connect_replication,
    run,
)
from pgtide.postgres.preconditions import OLDEST_VERSION
from pgtide.postgres.rights import read_role
from pgtide.postgres.slot import read_slot
from pgtide.postgres.verdict import Check, fail, ok, warn

CLOCK_SKEW_LIMIT_S = 1.0
LITTLE_HEADROOM_BYTES = 1 << 30
POOLER_PROBES = 5


def server_checks(conn: SqlConnection, server: ServerFacts, source: Source) -> Iterator[Check]:
    """Everything that is true of the server whatever is installed in it."""
    yield check_version(server)
    yield check_wal_level(server)
    yield check_primary(server)
    yield check_slots(conn, source.slot)
    yield check_senders(conn)
    yield from check_role(conn, source)
    yield check_wal_limit(conn, source.slot)
    yield check_temp_files(conn)
    yield check_encoding(server)
    yield check_clock(conn)


def check_version(server: ServerFacts) -> Check:
    if server.version < OLDEST_VERSION:
        return fail("server", f"Postgres {server.major} is too old", "Upgrade to 14 or later.")
    return ok("server", f"Postgres {server.major}")


def check_wal_level(server: ServerFacts) -> Check:
    if server.wal_level == "logical":
        return ok("wal_level", "logical")
    return fail(
        "wal_level",
        f"{server.wal_level}, logical is needed",
        "Run: ALTER SYSTEM SET wal_level = logical; then restart the server.",
    )


def check_primary(server: ServerFacts) -> Check:
    if server.in_recovery:
        return fail("primary", "the server is a standby", "Set source.url to the primary.")
    return ok("primary", f"timeline {server.timeline}")


def check_slots(conn: SqlConnection, slot: str) -> Check:
    """Room for our slot, unless it is there, and for the copy that a backlog is read from."""
    used, limit = _pair(
        conn,
        "SELECT count(*), current_setting('max_replication_slots')::int FROM pg_replication_slots",
    )
    free = limit - used
    there = read_slot(conn, slot).exists
    if free > 1 or (free and there):
        return ok("slots", f"{used} of {limit} in use")
    hint = _raise_setting("max_replication_slots", limit)
    if free or there:
        return warn("slots", f"{used} of {limit} in use: a backlog is read slowly", hint)
    return fail("slots", f"all {limit} are in use", hint)


def check_senders(conn: SqlConnection) -> Check:
    # Counted from the processes: pg_stat_replication hides others from plain roles.
    used, limit = _pair(
        conn,
        "SELECT count(*), current_setting('max_wal_senders')::int"
        " FROM pg_stat_get_activity(NULL) WHERE backend_type = 'walsender'",
    )
    if used < limit:
        return ok("wal senders", f"{used} of {limit} in use")
    return fail("wal senders", f"all {limit} are in use", _raise_setting("max_wal_senders", limit))


def check_role(conn: SqlConnection, source: Source) -> Iterator[Check]:
    """REPLICATION for the stream; SELECT only where existing rows are to be read."""
    role = read_role(conn)
    if role.replication:
        yield ok("role", f"{role.name} may replicate")
    else:
        yield fail("role", f"{role.name} may not replicate", f"Run: {role.grant_replication};")
    if source.snapshot == "never":
        return
    (unreadable,) = _pair(
        conn,
        "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind = 'r' AND c.relpersistence = 'p'"
        " AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'pgtide')"
        " AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'))",
    )
    if unreadable:
        yield warn(
            "role",
            f"{role.name} may not read {unreadable} tables: no snapshot of them is possible",
            f'Run: GRANT pg_read_all_data TO "{role.name}"; or GRANT SELECT on them.',
        )


def check_wal_limit(conn: SqlConnection, slot: str) -> Check:
    """Both ends: a limit that kills the slot soon, or none that lets it fill the disk."""
    (limit,) = _pair(conn, "SELECT current_setting('max_slot_wal_keep_size')")
    state = read_slot(conn, slot)
    if limit == "-1":
        return warn(
            "wal limit",
            "max_slot_wal_keep_size is not set: a capture that stands still fills the disk",
            "Run: ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        )
    left = state.safe_wal_size
    if left is not None and left < LITTLE_HEADROOM_BYTES:
        return warn(
            "wal limit",
            f"{max(left, 0) / 2**20:.0f} MiB until the slot is invalidated (limit {limit})",
            "Run pgtide capture, or raise max_slot_wal_keep_size.",
        )
    room = "" if left is None else f", {left / 2**30:.1f} GiB left"
    return ok("wal limit", f"max_slot_wal_keep_size {limit}{room}")


def check_temp_files(conn: SqlConnection) -> Check:
    """The bulk gear keeps a batch in temporary files at the server."""
    (limit,) = _pair(conn, "SELECT current_setting('temp_file_limit')")
    if limit == "-1":
        return ok("temp files", "no limit")
    role = read_role(conn).name
    return warn(
        "temp files",
        f"temp_file_limit is {limit}: larger backlogs take the slower way",
        f'Run as superuser: ALTER ROLE "{role}" SET temp_file_limit = -1;',
    )


def check_encoding(server: ServerFacts) -> Check:
    if server.encoding == "SQL_ASCII":
        return warn(
            "encoding",
            "the database is SQL_ASCII: a value that is not UTF-8 stops capture",
            "Convert the database to UTF8.",
        )
    return ok("encoding", server.encoding)


def check_clock(conn: SqlConnection) -> Check:
    """Commit times come from the server, lag is measured here."""
    before = time.time()
    (there,) = _pair(conn, "SELECT extract(epoch FROM clock_timestamp())::float8")
    after = time.time()
    skew = max(before - there, there - after, 0.0)
    if skew > CLOCK_SKEW_LIMIT_S:
        return warn("clock", f"{skew:.1f} s apart from the server", "Run NTP on both machines.")
    return ok("clock", f"within {max(skew, after - before) * 1000:.0f} ms of the server")


def check_session(url: str, conn: SqlConnection) -> Iterator[Check]:
    """No pooler in between, and a replication connection gets through."""
    if (pooler := _pooler(url, conn)) is not None:
        yield pooler
        if pooler.level == "fail":
            return
    try:
        stream = connect_replication(url, application_name="pgtide check")
    except PgtideError as error:
        hint = "Allow it in pg_hba.conf, and connect to the server without a pooler."
        yield fail("connection", f"no replication connection: {error.message}", hint)
        return
    with stream:
        system = run(stream, "IDENTIFY_SYSTEM").get_value(0, 0)
    (here,) = _pair(conn, "SELECT system_identifier::text FROM pg_control_system()")
    if (system or b"").decode() == here:
        yield ok("connection", "direct, replication gets through")
    else:
        yield fail("connection", "replication leads to another server", "Correct source.url.")


def _pooler(url: str, conn: SqlConnection) -> Check | None:
    """What speaks for a pooler in the way; None when nothing does."""
    hint = "Set source.url to the server itself: a session and its slot cannot be pooled."
    pids = {_pair(conn, "SELECT pg_backend_pid()")[0] for _ in range(POOLER_PROBES)}
    if pids != {conn.info.backend_pid}:
        return fail("connection", "statements are run by other server processes: a pooler", hint)
    (port,) = _pair(conn, "SELECT inet_server_port()")
    asked = conninfo_to_dict(url).get("port")
    if port is not None and asked and int(asked) != port:
        text = f"port {asked} was asked for, the server listens on {port}: forwarded or pooled"
        return warn("connection", text, hint)
    return None


def _raise_setting(name: str, limit: int) -> str:
    return f"Run: ALTER SYSTEM SET {name} = {limit + 10}; then restart the server."


def _pair(conn: SqlConnection, query: str) -> tuple[Any, ...]:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None, "an aggregate or a SELECT without FROM has one row"
    return row
