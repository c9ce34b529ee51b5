"""Sessions in a target: settings pinned like the source's, so that texts mean the same."""

from __future__ import annotations

from pgtide.errors import PgtideError, TargetError, TargetUnavailable, TransientError
from pgtide.log.source import LogSource
from pgtide.postgres.connection import SqlConnection, connect, no_timeouts

# What a target may have set otherwise for its database or the role.
_PINS = (
    # That a table is there already, or is truncated with others, need not be told.
    "SET client_min_messages = warning;"
    " SET row_security = off;"  # an error where it would hide rows
    # What tasks stage while a transaction goes on is seen by it.
    " SET default_transaction_isolation = 'read committed';"
    # How texts are read: NULL among the elements of an array is none, XML need be no document.
    " SET array_nulls = on; SET xmloption = content;"
    # How long a session outlives the machine of its client: by default more than two hours, for
    # which whatever it has locked would hold up the next run.
    " SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
)

# A copy of a server has its identifier, but hardly its slots.
_IS_SOURCE = """
SELECT EXISTS (SELECT FROM pg_replication_slots
               WHERE slot_name = %s AND database = current_database())
   AND (SELECT system_identifier::text FROM pg_control_system()) = %s
   AND current_database() = %s
"""

# A copy was not started in the same microsecond either; a slot may be still to be made.
_DATABASE = """
SELECT (SELECT system_identifier FROM pg_control_system()), pg_postmaster_start_time(),
       current_database()
"""


def connect_target(
    url: str, application_name: str = "pgtide", *, pipeline: str = ""
) -> SqlConnection:
    """Open a session with autocommit; errors are about the target, that of a pipeline if given."""
    whose = f"the target of pipeline {pipeline}" if pipeline else "the target"
    where = f"pipelines.{pipeline}.sink.url" if pipeline else "the pipeline's sink.url"
    try:
        connection = connect(url, application_name=application_name)
    except PgtideError as error:
        detail = f"{error.message}. {error.detail}".rstrip(" .") + "."
        if isinstance(error, TransientError):
            raise TargetUnavailable(
                f"{whose} cannot be reached",
                detail=detail,
                hint=f"Start that server, or correct {where}.",
            ) from error
        raise TargetError(
            f"{whose} does not let pgtide in",
            detail=detail,
            hint=f"Correct {where}, or the rights of its role.",
        ) from error
    connection.execute(_PINS)
    no_timeouts(connection)
    return connection


def database_of(connection: SqlConnection) -> tuple[object, ...]:
    """What tells the database from all others, whoever asks."""
    row = connection.execute(_DATABASE).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return row


def refuse_source(connection: SqlConnection, source: LogSource) -> None:
    """Refuse the very database that the log is of.

    Its triggers would be disabled, and its rows would meet their own changes.
    """
    given = [source.slot, source.system_identifier, source.database]
    if connection.execute(_IS_SOURCE, given).fetchone() == (True,):
        raise TargetError(
            "the target is the source",
            detail=f"It has slot {source.slot}, which the log is of.",
            hint="Name another database in the pipeline's sink.url. In a copy of the source's "
            "server drop that slot first.",
        )
