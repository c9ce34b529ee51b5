"""The lines of ``pgtide check`` about Postgres targets: can they be reached and written to?"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from psycopg import sql

from pgtide.config import TablePatterns
from pgtide.config.model import Config, Pipeline
from pgtide.config.sinks import PostgresSettings
from pgtide.errors import PgtideError
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.verdict import Check, fail, ok, warn
from pgtide.sinks.postgres.ddl_kinds import DdlKinds
from pgtide.sinks.postgres.reaching import connect_target
from pgtide.sinks.postgres.session import database_of

# Of a schema that is not there: NULL.
_RIGHTS = """
SELECT pg_is_in_recovery(), has_database_privilege(current_database(), 'CREATE'),
       has_schema_privilege(to_regnamespace('pgtide'), 'CREATE'),
       has_schema_privilege(to_regnamespace('public'), 'CREATE')
"""


def check_targets(config: Config, source: object) -> Iterator[Check]:
    """One line or more for each pipeline with such a target; ``source``: its ``database_of``."""
    for name, pipeline in config.pipelines.items():
        if isinstance(pipeline.sink, PostgresSettings):
            try:
                DdlKinds(pipeline.sink.ddl)
                with connect_target(config, name, application_name="pgtide check") as connection:
                    if _would_mirror_itself(connection, pipeline, pipeline.sink, source):
                        hint = f"Name another database in pipelines.{name}.sink.url."
                        yield fail("target", f"{name}: it is the source", hint)
                    else:
                        yield from _lines(connection, name, pipeline, pipeline.sink)
            except PgtideError as error:
                yield fail("target", f"{name}: {error.message}. {error.detail}", error.hint)


def _would_mirror_itself(
    connection: SqlConnection, pipeline: Pipeline, sink: PostgresSettings, source: object
) -> bool:
    """Whether rows would go into the tables that they come from, which a run refuses."""
    return sink.mode == "mirror" and not pipeline.routes and database_of(connection) == source


def _grant(connection: SqlConnection, kind: str, name: str) -> str:
    grant = sql.SQL("Run there: GRANT CREATE ON {} {} TO {}").format(
        sql.SQL(kind), sql.Identifier(name), sql.Identifier(connection.info.user)
    )
    return grant.as_string(None)


def _lines(
    connection: SqlConnection, name: str, pipeline: Pipeline, sink: PostgresSettings
) -> Iterator[Check]:
    row = connection.execute(_RIGHTS).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    recovering, makes_schemas, owns_ours, makes_tables = row
    if recovering:
        yield fail("target", f"{name}: it is a standby", "Name the primary in sink.url.")
    elif owns_ours is None and not makes_schemas:
        hint = _grant(connection, "DATABASE", connection.info.dbname)
        yield fail("target", f"{name}: the role may not make schema pgtide", hint)
    elif owns_ours is False:
        hint = "Name the role in sink.url that wrote there before: it owns schema pgtide."
        yield fail("target", f"{name}: the role may not write to schema pgtide", hint)
    else:
        yield ok("target", f"{name}: {sink.url} can be written to")
    schemas = TablePatterns(pipeline.tables).schemas()
    if makes_tables is False and not recovering and (schemas is None or "public" in schemas):
        said = f"{name}: the role may not make tables in schema public"
        yield warn("target", said, _grant(connection, "SCHEMA", "public"))
    if sink.replication_role == "replica":
        try:
            with connection.transaction(force_rollback=True):
                connection.execute("SET LOCAL session_replication_role = replica")
        except psycopg.errors.InsufficientPrivilege:
            grant = "GRANT SET ON PARAMETER session_replication_role TO the role (Postgres 15+)"
            text = f"{name}: the role may not set replication_role: replica"
            yield fail("target", text, f"Run there: {grant}, or leave the setting out.")
