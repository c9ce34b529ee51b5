"""The lines of ``pgtide check`` about Postgres targets: can they be reached and written to?"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from pgtide.config.model import Config
from pgtide.config.sinks import PostgresSettings
from pgtide.errors import PgtideError
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.verdict import Check, fail, ok
from pgtide.sinks.postgres.ddl_kinds import DdlKinds
from pgtide.sinks.postgres.reaching import connect_target


def check_targets(config: Config) -> Iterator[Check]:
    """One line or more for each pipeline with such a target."""
    for name, pipeline in config.pipelines.items():
        if isinstance(pipeline.sink, PostgresSettings):
            try:
                DdlKinds(pipeline.sink.ddl)
                with connect_target(config, name, application_name="pgtide check") as connection:
                    yield from _lines(connection, name, pipeline.sink)
            except PgtideError as error:
                yield fail("target", f"{name}: {error.message}. {error.detail}", error.hint)


def _lines(connection: SqlConnection, name: str, sink: PostgresSettings) -> Iterator[Check]:
    row = connection.execute(
        "SELECT to_regnamespace('pgtide') IS NOT NULL"
        " OR has_database_privilege(current_database(), 'CREATE'), pg_is_in_recovery()"
    ).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    allowed, recovering = row
    if recovering:
        yield fail("target", f"{name}: it is a standby", "Name the primary in sink.url.")
    elif not allowed:
        hint = "Run there: GRANT CREATE ON DATABASE … TO the role of sink.url"
        yield fail("target", f"{name}: the role may not make schema pgtide", hint)
    else:
        yield ok("target", f"{name}: {sink.url} can be written to")
    if sink.replication_role == "replica":
        try:
            with connection.transaction(force_rollback=True):
                connection.execute("SET LOCAL session_replication_role = replica")
        except psycopg.errors.InsufficientPrivilege:
            grant = "GRANT SET ON PARAMETER session_replication_role TO the role (Postgres 15+)"
            text = f"{name}: the role may not set replication_role: replica"
            yield fail("target", text, f"Run there: {grant}, or leave the setting out.")
