"""Sessions in the target: settings pinned like the source's, so that texts mean the same."""

from __future__ import annotations

from pgtide.errors import ConfigError, PgtideError, SourceUnavailable, TargetUnavailable
from pgtide.postgres.connection import SqlConnection, connect, no_timeouts


def connect_target(url: str, application_name: str = "pgtide") -> SqlConnection:
    """Open a session; errors are about the target."""
    try:
        connection = connect(url, application_name=application_name)
    except SourceUnavailable as error:
        raise TargetUnavailable(
            "the target cannot be reached",
            detail=error.message,
            hint="Start the server or correct the pipeline's sink.url.",
        ) from error
    except PgtideError as error:
        hint = error.hint.replace("source.url", "the pipeline's sink.url")
        raise ConfigError(f"the target: {error.message}", detail=error.detail, hint=hint) from error
    # A message that a table is there already, or is truncated with others, helps nobody.
    connection.execute("SET client_min_messages = warning")
    no_timeouts(connection)
    return connection
