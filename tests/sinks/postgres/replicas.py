"""A second database that follows a captured one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.log.storage import Storage
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import State
from pgtide.pipeline.state_file import StateFile
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database

PIPELINE = "replica"


@dataclass
class Replica:
    """The pipeline into a target."""

    spark: SparkSession
    captured: Captured
    target: Database

    def config(self, pipeline: dict[str, Any] | None = None, **sink: Any) -> Config:
        settings = {"type": "postgres", "url": self.target.url, **sink}
        given = {
            **self.captured.settings,
            "pipelines": {PIPELINE: {"sink": settings, **(pipeline or {})}},
        }
        return Config.model_validate(given)

    def follow(self, pipeline: dict[str, Any] | None = None, **sink: Any) -> State:
        """Capture what there is and bring it into the target."""
        self.captured.capture()
        return self.apply(pipeline, **sink)

    def apply(
        self, pipeline: dict[str, Any] | None = None, on_batch: Any = None, **sink: Any
    ) -> State:
        config = self.config(pipeline, **sink)
        run = PipelineRun(self.spark, config, PIPELINE, on_batch=on_batch)
        return run.run(until_current=True)

    def begin_stream(self, pipeline: dict[str, Any] | None = None) -> None:
        """What there is, and a batch more: Spark counts the stream's first one itself."""
        self.follow(pipeline)
        self.captured.run("CREATE TABLE begun (id int PRIMARY KEY)")
        self.follow(pipeline)

    def resume(self) -> None:
        """Ask for parked tables, as ``pgtide resume`` does."""
        storage = Storage(self.captured.config.log.path)
        StateFile(storage, PIPELINE).ask_resume(None)

    def both(self, script: str) -> None:
        """Run statements in source and target alike."""
        self.captured.run(script)
        for statement in script.split(";\n"):
            if statement.strip():
                self.target.execute(statement)

    def rows(self, table: str, columns: str = "t::text") -> list[tuple[Any, ...]]:
        return self.target.execute(f"SELECT {columns} FROM {table} t ORDER BY 1")

    def check_equal(self, *tables: str) -> None:
        """Every value as Postgres prints it."""
        for table in tables:
            query = f"SELECT t::text FROM {table} t ORDER BY 1"
            assert self.target.execute(query) == self.captured.execute(query), table


def target_database(database: Database) -> Iterator[Database]:
    target = Database.create(database.server)
    yield target
    target.drop()
