"""Pipelines that mirror into Postgres, and sessions there for what is not the writing of rows."""

from __future__ import annotations

from pgtide.config.model import Config
from pgtide.config.sinks import PostgresSettings
from pgtide.errors import ConfigError
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres import session


def postgres_pipelines(config: Config, name: str | None = None) -> list[str]:
    """Pipelines whose Postgres target mirrors the source: all, or the one that was named."""
    if name is not None:
        refuse_history(config, name)
        return [name]
    found = [
        each
        for each, pipeline in config.pipelines.items()
        if isinstance(pipeline.sink, PostgresSettings) and pipeline.sink.mode == "mirror"
    ]
    if not found:
        raise ConfigError(
            "no pipeline mirrors into a Postgres target",
            hint="Add one below pipelines: sink: {type: postgres, url: …}",
        )
    return found


def refuse_history(config: Config, pipeline: str) -> None:
    """Refuse a pipeline whose target has changes: it has no schema and no rows of the source."""
    if _settings(config, pipeline).mode == "history":
        raise ConfigError(
            f"pipeline {pipeline} writes a history",
            detail="Its target has every change of a table, and not the table itself.",
            hint="Name a pipeline with mode: mirror.",
        )


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
