"""The checks of ``pgtide check``: every precondition as one line of data.

A check never raises for what it was made to find; a connection that fails at
the start is an error like any other. ``fail`` means that capture would stop or
harm the application, ``warn`` that it works but something is lost or at risk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import psycopg

from pgtide.config import Config, TablePatterns
from pgtide.log.source import LogSource
from pgtide.postgres import ddl_trigger
from pgtide.postgres.catalog import ServerFacts, read_layouts, read_server
from pgtide.postgres.connection import SqlConnection, connect, translate
from pgtide.postgres.fingerprint import changes_since, fingerprint
from pgtide.postgres.identity import TableIdentity, read_identities
from pgtide.postgres.names import is_literal, nearest
from pgtide.postgres.partition_keys import check_partition_keys
from pgtide.postgres.publication import publication_names
from pgtide.postgres.server_checks import check_session, server_checks
from pgtide.postgres.settings import read_slot_settings
from pgtide.postgres.slot import PLUGIN, read_slot
from pgtide.postgres.verdict import Check, fail, ok, warn
from pgtide.rules.checking import check_rules
from pgtide.rules.selecting import check_selection

__all__ = ["Check", "LogProbe", "run_checks"]


@dataclass(frozen=True, slots=True)
class LogProbe:
    """What the log's side found: its source when there is a log, or why it cannot be used."""

    path: str
    source: LogSource | None = None
    problem: str = ""


def run_checks(config: Config, log: LogProbe) -> list[Check]:
    """Run every check against the source; the log was looked at by the caller."""
    source = config.source
    with connect(source.url.reveal(), application_name="pgtide check") as conn:
        try:
            server = read_server(conn)
            return [
                *server_checks(conn, server, source),
                *check_session(source.url.reveal(), conn),
                *check_patterns(conn, TablePatterns(source.tables)),
                *check_trigger(conn, wanted=source.ddl),
                *check_publication(conn, source.slot, TablePatterns(source.tables)),
                *check_identities(conn, source.slot, TablePatterns(source.tables)),
                *check_slot(conn, source.slot, server),
                check_log_source(log, server, source.slot),
                *check_pipelines(conn, config),
            ]
        except psycopg.Error as exc:
            raise translate(exc) from exc


def check_patterns(conn: SqlConnection, patterns: TablePatterns) -> Iterator[Check]:
    """Patterns that match no table: misspelt when they have no wildcard."""
    tables = read_identities(conn)
    names = [(table.schema, table.table) for table in tables]
    unknown = patterns.unmatched(names)
    for text in unknown:
        if is_literal(text):
            yield fail("tables", f"unknown table pattern {text!r}", nearest(text, names))
        else:
            yield warn("tables", f"pattern {text!r} matches no table yet")
    if not unknown:
        count = sum(table.selected(patterns) for table in tables if table.kind == "r")
        yield ok("tables", f"{count} selected by the patterns")


def check_trigger(conn: SqlConnection, *, wanted: bool) -> Iterator[Check]:
    """The DDL trigger: all three parts, enabled in every session, of this release."""
    state = ddl_trigger.read_state(conn)
    lost = "DDL is not captured; a rename looks like drop and add"
    if not wanted:
        yield warn("ddl trigger", f"source.ddl is off: {lost}")
    elif len(state.missing) == len(ddl_trigger.TRIGGERS):
        hint = "Run pgtide init with an admin_url that may create event triggers (superuser)."
        yield warn("ddl trigger", f"not installed: {lost}", hint)
    elif state.missing:
        yield fail("ddl trigger", f"incomplete: {', '.join(state.missing)}", "Run: pgtide init")
    elif state.disabled:
        statement = f"ALTER EVENT TRIGGER {state.disabled[0]} ENABLE ALWAYS"
        names = ", ".join(state.disabled)
        yield fail("ddl trigger", f"not enabled in every session: {names}", f"Run: {statement};")
    elif not _may_read_secret(conn):
        yield fail("ddl trigger", "its secret cannot be read by this role", "Run: pgtide init")
    elif not state.current:
        yield warn("ddl trigger", "of another release of pgtide", "Run: pgtide init")
    else:
        yield ok("ddl trigger", "installed, enabled in every session")
    row = conn.execute("SELECT current_setting('event_triggers', true)").fetchone()
    if row and row[0] == "off":
        yield fail(
            "ddl trigger",
            "event_triggers is off: no event trigger fires",
            "Run: ALTER SYSTEM RESET event_triggers; SELECT pg_reload_conf();",
        )


def check_publication(conn: SqlConnection, slot: str, patterns: TablePatterns) -> Iterator[Check]:
    """The publication is there, as init made it, and covers what the patterns select."""
    names = publication_names(conn, slot)
    if slot not in names:
        yield fail("publication", f"there is no publication {slot}", "Run: pgtide init")
        return
    recorded = read_slot_settings(conn, slot) if _may_read(conn, "pgtide.settings") else None
    if recorded is None:
        yield fail("publication", "it was not made by pgtide init", "Run: pgtide init")
        return
    if changed := changes_since(conn, recorded.fingerprint):
        yield fail("publication", "; ".join(changed), "Accept it with: pgtide init")
        return
    missing = _not_covered(conn, names, patterns)
    if missing:
        yield fail(
            "publication",
            f"selected, but not in it: {', '.join(missing)}",
            "Run: pgtide init",
        )
    else:
        yield ok("publication", f"the selected tables are in {' and '.join(names)}")
    current = fingerprint(conn, [slot])[slot]
    if not current["all_tables"] and not current["schemas"]:
        yield warn(
            "publication",
            "it is a list: tables created later are not captured until pgtide init runs again",
        )


def check_identities(conn: SqlConnection, slot: str, patterns: TablePatterns) -> Iterator[Check]:
    """Tables whose UPDATE and DELETE fail, or would once they are published."""
    updating = _published(conn, [slot])
    tables = [table for table in read_identities(conn) if not table.usable]
    broken = [table for table in tables if table.oid in updating]
    waiting = [t for t in tables if t.oid not in updating and t.selected(patterns)]
    inserting = _published(conn, publication_names(conn, slot)[1:])
    for table in broken:
        yield fail("replica identity", f"UPDATE and DELETE fail on {table.name}", _remedy(table))
    for table in waiting:
        if table.oid in inserting:
            yield warn("replica identity", f"only inserts of {table.name} are captured")
        else:
            text = f"{table.name} has none: its updates and deletes could not be replicated"
            yield fail("replica identity", text, _remedy(table))
    if not broken and not waiting:
        yield ok("replica identity", "every selected table has one")


def check_slot(conn: SqlConnection, slot: str, server: ServerFacts) -> Iterator[Check]:
    """The slot exists, is ours and still has its WAL."""
    state = read_slot(conn, slot)
    if not state.exists:
        yield fail("slot", f"there is no slot {slot}", "Run: pgtide init")
    elif (state.plugin, state.database) != (PLUGIN, server.database):
        text = f"slot {slot} belongs to {state.plugin} in {state.database}"
        yield fail("slot", text, "Set source.slot to another name.")
    elif state.invalid:
        reason = state.invalidation_reason or "its WAL was removed"
        yield fail(
            "slot",
            f"invalidated: {reason}",
            "Run: pgtide destroy; then pgtide init with a new log.path",
        )
    elif state.wal_status == "unreserved":
        yield fail(
            "slot", "it is about to lose WAL", "Start pgtide capture now, or raise the limit."
        )
    else:
        yield ok("slot", f"{slot} holds back {(state.retained_bytes or 0) / 2**20:.1f} MiB of WAL")


def check_log_source(log: LogProbe, server: ServerFacts, slot: str) -> Check:
    """The log can be written and belongs to this source."""
    if log.problem:
        return fail("log", f"{log.path}: {log.problem}", "Correct log.path or its storage options.")
    if log.source is None:
        return warn("log", f"there is no log at {log.path} yet", "Run: pgtide init")
    found = (log.source.system_identifier, log.source.database, log.source.slot)
    if found != (server.system_identifier, server.database, slot):
        text = f"{log.path} belongs to another source: database {found[1]}, slot {found[2]}"
        return fail("log", text, "Set log.path to a new place.")
    return ok("log", f"{log.path} is writable and of this source")


def check_pipelines(conn: SqlConnection, config: Config) -> Iterator[Check]:
    """What pipelines select, and their rules, against the tables as they are now."""
    if config.pipelines:
        layouts = read_layouts(conn, TablePatterns(config.source.tables))
        yield from check_selection(config.pipelines, list(layouts.values()))
        yield from check_rules(config.pipelines, list(layouts.values()))
        yield from check_partition_keys(conn, config.pipelines)


def _not_covered(conn: SqlConnection, names: list[str], patterns: TablePatterns) -> list[str]:
    covered = _published(conn, names)
    return [
        table.name
        for table in read_identities(conn)
        if table.kind == "r" and table.selected(patterns) and table.oid not in covered
    ]


def _published(conn: SqlConnection, names: list[str]) -> set[int]:
    # Leaves, not roots: publish_via_partition_root is off.
    rows = conn.execute(
        "SELECT DISTINCT t.relid::bigint FROM pg_publication p,"
        " LATERAL pg_get_publication_tables(p.pubname) t WHERE p.pubname = ANY(%s)",
        [names],
    )
    return {oid for (oid,) in rows}


def _remedy(table: TableIdentity) -> str:
    if not table.full_helps:
        return f"Add a primary key to {table.name}."
    return f"Add a primary key, or run: {table.alter};"


def _may_read(conn: SqlConnection, table: Literal["pgtide.settings", "pgtide.secret"]) -> bool:
    row = conn.execute(
        "SELECT CASE WHEN to_regnamespace('pgtide') IS NULL THEN false"
        " ELSE has_schema_privilege('pgtide', 'USAGE') AND coalesce("
        "(SELECT has_table_privilege(c.oid, 'SELECT') FROM pg_class c"
        " WHERE c.relnamespace = to_regnamespace('pgtide') AND c.relname = %s), false) END",
        [table.removeprefix("pgtide.")],
    ).fetchone()
    return bool(row and row[0])


def _may_read_secret(conn: SqlConnection) -> bool:
    return _may_read(conn, "pgtide.secret")
