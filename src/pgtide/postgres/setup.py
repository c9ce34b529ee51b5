"""``pgtide init``: everything that capturing needs at the source, in steps.

Order: rights, schema, DDL trigger, grants, replica identities, publication,
slot. The publication exists before the slot, and the table layouts are read in
the slot's own snapshot. Each step is one transaction and is left out when its
result is already there, so a run that was interrupted is simply run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from pgtide.config import Config, Source, TablePatterns
from pgtide.errors import PrivilegeMissing, SlotInvalidated, SourceError
from pgtide.log.source import LogSource
from pgtide.position import Lsn
from pgtide.postgres import ddl_trigger
from pgtide.postgres.catalog import ServerFacts, read_layouts, read_server
from pgtide.postgres.connection import SqlConnection, connect, translate
from pgtide.postgres.preconditions import (
    check_log,
    check_patterns,
    check_same_server,
    check_server,
)
from pgtide.postgres.publication import Choice, choose
from pgtide.postgres.record import publication_step
from pgtide.postgres.rights import may_create_event_trigger, read_role
from pgtide.postgres.settings import SCHEMA_SQL, read_start, settings_exist, write_start
from pgtide.postgres.slot import (
    PLUGIN,
    SlotCreation,
    SlotState,
    creation_sql,
    drop_slot,
    read_slot,
)
from pgtide.postgres.step import Step
from pgtide.shape import Shape

FAILOVER_VERSION = 170_000
LOCK_TIMEOUT = "5s"
"""A step that waits for a table lock would make the application wait behind it."""


@dataclass(frozen=True, slots=True)
class InitResult:
    """What ``init`` found or made; without a new slot there is no baseline."""

    steps: tuple[Step, ...]
    slot: str
    database: str
    system_identifier: str
    timeline: int
    slot_created: bool = False
    consistent_point: Lsn | None = None
    baseline: tuple[Shape, ...] | None = None


def init(config: Config, *, dry_run: bool = False, log: LogSource | None = None) -> InitResult:
    """Prepare the source; with ``dry_run`` only say how. ``log`` is the one that exists."""
    source = config.source
    with (
        connect(source.url.reveal(), application_name="pgtide init") as own,
        connect(source.admin.reveal(), application_name="pgtide init") as conn,
    ):
        try:
            server = read_server(conn)
            check_same_server(server, read_server(own))
            check_log(server, source.slot, read_slot(conn, source.slot), log)
            steps = plan(conn, config, read_role(own).name)
            found = InitResult(
                steps=tuple(steps),
                slot=source.slot,
                database=server.database,
                system_identifier=server.system_identifier,
                timeline=server.timeline,
            )
            if dry_run:
                return found
            for step in steps:
                apply(conn, step)
            return _ensure_slot(conn, source, server, found, fresh_log=log is None)
        except psycopg.Error as exc:
            raise translate(exc) from exc


def plan(conn: SqlConnection, config: Config, role: str) -> list[Step]:
    """The steps for this database; ``role`` is the one that captures."""
    source = config.source
    server = read_server(conn)
    check_server(server)
    patterns = TablePatterns(source.tables)
    check_patterns(conn, patterns)
    installed = ddl_trigger.read_state(conn)
    trigger = _trigger_step(conn, source, installed)
    steps = [*_role_steps(conn, role), _schema_step(conn, trusted=not installed.missing), trigger]
    steps += _grant_steps(conn, role, with_secret=not trigger.note)
    choice = choose(
        conn,
        source.slot,
        patterns,
        keyless=source.keyless,
        version=server.version,
        guarded=not trigger.note,
    )
    steps += [
        Step("identity", f"REPLICA IDENTITY FULL for {table.name}", (table.alter,))
        for table in choice.full
    ]
    steps.append(publication_step(conn, source, choice, server.version))
    steps += _notes(choice)
    steps.append(_slot_step(read_slot(conn, source.slot), server))
    return steps


def apply(conn: SqlConnection, step: Step) -> None:
    """Run a step in one transaction; the slot's is not SQL's to make here."""
    if step.done or step.name == "slot" or not step.sql:
        return
    try:
        with conn.transaction():
            conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT)))
            for statement in step.sql:
                conn.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as exc:
        raise PrivilegeMissing(
            f"this role may not: {step.text}",
            detail=f"{exc.diag.message_primary}.",
            hint="Set source.admin_url to a role that may, or let a DBA run:"
            " pgtide init --dry-run | psql",
        ) from exc
    except psycopg.errors.LockNotAvailable as exc:
        raise SourceError(
            f"a lock was not free within {LOCK_TIMEOUT}: {step.text}",
            detail="A long transaction uses the table; waiting would have stopped the application.",
            hint="Run pgtide init again when it has ended.",
        ) from exc
    except psycopg.Error as exc:
        raise translate(exc) from exc


def _role_steps(conn: SqlConnection, role: str) -> list[Step]:
    facts = read_role(conn, role)
    statements = () if facts.replication else (facts.grant_replication,)
    return [Step("role", f"role {role} may replicate", statements, done=facts.replication)]


def _schema_step(conn: SqlConnection, *, trusted: bool) -> Step:
    row = conn.execute(
        "SELECT r.rolname, r.rolsuper OR pg_has_role(r.oid, 'USAGE')"
        " FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'pgtide'"
    ).fetchone()
    # Who owns the schema could read the secret and replace the functions in it. Where the event
    # triggers are installed, somebody who may do more than that has chosen it.
    if row is not None and not row[1] and not trusted:
        raise SourceError(
            f"schema pgtide belongs to {row[0]}",
            detail="Its owner could sign DDL messages; pgtide does not use a schema of others.",
            hint=f"Connect as {row[0]} in source.admin_url, or drop the schema.",
        )
    done = settings_exist(conn)
    return Step("schema", "schema pgtide with table settings", (SCHEMA_SQL,), done=done)


def _trigger_step(conn: SqlConnection, source: Source, installed: ddl_trigger.TriggerState) -> Step:
    lost = "DDL is not captured: shapes follow the data, a rename looks like drop and add"
    if not source.ddl:
        return Step("ddl", f"source.ddl is off, so {lost}", note=True)
    if not installed.complete and not may_create_event_trigger(conn):
        return Step("ddl", f"this role may not create event triggers: {lost}", note=True)
    return Step("ddl", "DDL event triggers", (ddl_trigger.script(),), done=installed.complete)


def _grant_steps(conn: SqlConnection, role: str, *, with_secret: bool) -> list[Step]:
    if read_role(conn, role).superuser:
        return []
    tables = ["pgtide.settings", "pgtide.secret"] if with_secret else ["pgtide.settings"]
    row = conn.execute(
        """
        SELECT coalesce(bool_and(has_table_privilege(%(role)s, to_regclass(t), 'SELECT')), false)
           AND coalesce(has_schema_privilege(%(role)s, to_regnamespace('pgtide'), 'USAGE'), false)
           AND count(to_regclass(t)) = count(*)
        FROM unnest(%(tables)s::text[]) t
        """,
        {"role": role, "tables": tables},
    ).fetchone()
    name = sql.Identifier(role)
    select = sql.SQL("GRANT SELECT ON " + ", ".join(tables) + " TO {}")
    statements = (
        sql.SQL("GRANT USAGE ON SCHEMA pgtide TO {}").format(name).as_string(None),
        select.format(name).as_string(None),
    )
    done = bool(row and row[0])
    return [Step("grants", f"role {role} may read {' and '.join(tables)}", statements, done=done)]


def _notes(choice: Choice) -> Iterator[Step]:
    for note in choice.notes:
        yield Step("publication", note, note=True)
    if choice.publications[0].scope != "tables":
        yield Step(
            "publication",
            "a table created later without a key gets REPLICA IDENTITY FULL from the DDL"
            " trigger, so that its UPDATE and DELETE keep working",
            note=True,
        )


def _slot_step(slot: SlotState, server: ServerFacts) -> Step:
    if slot.exists and (slot.plugin, slot.database) != (PLUGIN, server.database):
        raise SourceError(
            f"slot {slot.name} belongs to something else",
            detail=f"Its plugin is {slot.plugin} and its database {slot.database}.",
            hint="Set source.slot to another name.",
        )
    if slot.invalid:
        raise SlotInvalidated(
            f"slot {slot.name} is invalidated",
            detail=f"Reason: {slot.invalidation_reason or 'the WAL it needed was removed'}.",
            hint="Run: pgtide destroy; then pgtide init with a new log.path",
        )
    statement = creation_sql(slot.name, failover=server.version >= FAILOVER_VERSION)
    return Step("slot", f"replication slot {slot.name}", (f"{statement};",), done=slot.exists)


def _ensure_slot(
    conn: SqlConnection, source: Source, server: ServerFacts, found: InitResult, *, fresh_log: bool
) -> InitResult:
    slot = read_slot(conn, source.slot)
    if slot.exists:
        if not fresh_log or slot.confirmed_flush_lsn != read_start(conn, slot.name):
            return found
        # Made by a script, or by a run that was interrupted, and never used: made again,
        # because only its own snapshot shows the layouts that are true where it begins.
        drop_slot(conn, slot.name)
    return _create_slot(conn, source, server, found)


def _create_slot(
    conn: SqlConnection, source: Source, server: ServerFacts, found: InitResult
) -> InitResult:
    creation = SlotCreation(
        source.url.reveal(),
        source.slot,
        version=server.version,
        failover=server.version >= FAILOVER_VERSION,
    )
    with creation as created:
        write_start(conn, source.slot, created.consistent_point)
        baseline = _read_baseline(conn, created.snapshot, created.consistent_point)
    return replace(
        found,
        timeline=created.timeline,
        slot_created=True,
        consistent_point=created.consistent_point,
        baseline=tuple(baseline),
    )


def _read_baseline(conn: SqlConnection, snapshot: str, since: Lsn) -> Sequence[Shape]:
    try:
        with conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
            return [replace(shape, since=since) for shape in read_layouts(conn).values()]
    except psycopg.Error as exc:
        raise translate(exc) from exc
