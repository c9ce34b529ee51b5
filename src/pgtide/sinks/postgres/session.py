"""Sessions in a target: settings pinned like the source's, so that texts mean the same."""

from __future__ import annotations

from pgtide.errors import PgtideError, TargetError, TargetUnavailable, TransientError
from pgtide.postgres.connection import SqlConnection, connect, no_timeouts


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
    # That a table is there already, or is truncated with others, need not be told.
    connection.execute("SET client_min_messages = warning")
    connection.execute("SET row_security = off")  # an error where it would hide rows
    no_timeouts(connection)
    return connection
