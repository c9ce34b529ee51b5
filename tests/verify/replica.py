"""A second database that is as the source is, and what a verification says of it.

``fill`` copies tables and says how far they are, in one transaction, as the sink would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from pgtide.config import Config
from pgtide.position import Position
from pgtide.sinks.postgres.bookkeeping import prepare, write_progress
from pgtide.verify.report import PipelineReport
from pgtide.verify.verifying import Options, Verification
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database

NAME = "lake"  # of the pipeline, as in the other tests


@dataclass
class Replica:
    """A target without a sink."""

    captured: Captured
    database: Database

    def config(self, **pipeline: Any) -> Config:
        settings = {"sink": {"type": "postgres", "url": self.database.url}, **pipeline}
        return Config.model_validate({**self.captured.settings, "pipelines": {NAME: settings}})

    def run(self, script: str) -> None:
        """Run statements on both sides."""
        self.captured.run(script)
        Captured.run(self.other, script)

    @property
    def other(self) -> Captured:
        return Captured(self.database, self.captured.settings, self.captured.directory)

    def fill(self, *tables: str) -> None:
        """Copy tables as they are, after capture has come to them."""
        self.captured.capture()
        with (
            self.captured.database.connect(autocommit=False) as source,
            self.database.connect(autocommit=False) as target,
        ):
            source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            prepare(target)
            for table in tables:
                name = sql.Identifier("public", table)
                columns = source.execute(
                    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
                    " AND NOT attisdropped AND attgenerated = ''",
                    [name.as_string(None)],
                )
                names = sql.SQL(", ").join([sql.Identifier(row[0]) for row in columns])
                read = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(names, name)
                write = sql.SQL("COPY {} ({}) FROM STDIN").format(name, names)
                target.execute(sql.SQL("TRUNCATE {}").format(name))
                with source.cursor().copy(read) as lines, target.cursor().copy(write) as into:
                    for line in lines:
                        into.write(line)
            end = self.captured.log.end
            write_progress(target, NAME, Position(end.lsn, end.seq - 1), "log")
            target.commit()

    def verify(self, config: Config | None = None, **options: Any) -> PipelineReport:
        return Verification(no_spark, config or self.config(), NAME, Options(**options)).run()

    def plant(self, *statements: str) -> None:
        for statement in statements:
            self.database.execute(statement)


def no_spark() -> Any:
    raise AssertionError("Spark is not needed")


def equal(report: PipelineReport, tables: Sequence[str]) -> bool:
    """Whether exactly these tables were compared, and nothing differs."""
    assert [table.table for table in report.tables] == [f"public.{name}" for name in tables]
    assert all(table.equal for table in report.tables), report
    return True
