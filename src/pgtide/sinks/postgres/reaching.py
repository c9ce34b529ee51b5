"""Pipelines with a Postgres target, and sessions there for what is not the writing of rows."""

from __future__ import annotations

from pgtide.config.model import Config
from pgtide.config.sinks import PostgresSettings
from pgtide.errors import ConfigError
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres import session


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
    url = _settings(config, pipeline).url.reveal()
    return session.connect_target(url, application_name, pipeline=pipeline)


def _settings(config: Config, pipeline: str) -> PostgresSettings:
    sink = config.pipelines[pipeline].sink
    if not isinstance(sink, PostgresSettings):
        raise ConfigError(
            f"pipeline {pipeline} has no Postgres target", hint=f"Its sink is of type {sink.type}."
        )
    return sink
