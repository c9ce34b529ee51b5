"""Connecting to a target for what is not the writing of rows: errors speak of the target."""

from __future__ import annotations

from pgtide.config.model import Config
from pgtide.config.sinks import PostgresSettings
from pgtide.errors import ConfigError, PgtideError, TargetError, TargetUnavailable, TransientError
from pgtide.postgres.connection import SqlConnection, connect


def postgres_pipelines(config: Config, name: str | None = None) -> list[str]:
    """Pipelines with a Postgres target: all, or the one that was named."""
    if name is not None:
        _settings(config, name)
        return [name]
    found = [
        each
        for each, pipeline in config.pipelines.items()
        if isinstance(pipeline.sink, PostgresSettings)
    ]
    if not found:
        raise ConfigError(
            "no pipeline has a Postgres target",
            hint="Add one below pipelines: sink: {type: postgres, url: …}",
        )
    return found


def connect_target(config: Config, pipeline: str, *, application_name: str) -> SqlConnection:
    """A session at the target of a pipeline, with autocommit."""
    url = _settings(config, pipeline).url
    try:
        return connect(url.reveal(), application_name=application_name)
    except PgtideError as error:
        where = f"pipelines.{pipeline}.sink.url"
        detail = f"{error.message}. {error.detail}".rstrip(" .") + "."
        if isinstance(error, TransientError):
            raise TargetUnavailable(
                f"the target of pipeline {pipeline} cannot be reached",
                detail=detail,
                hint=f"Start that server, or correct {where}.",
            ) from error
        raise TargetError(
            f"the target of pipeline {pipeline} does not let pgtide in",
            detail=detail,
            hint=f"Correct {where}, or the rights of its role.",
        ) from error


def _settings(config: Config, pipeline: str) -> PostgresSettings:
    sink = config.pipelines[pipeline].sink
    if not isinstance(sink, PostgresSettings):
        raise ConfigError(
            f"pipeline {pipeline} has no Postgres target", hint=f"Its sink is of type {sink.type}."
        )
    return sink
