"""Tasks that stage a batch from the log's files: what goes wrong on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import LogError, LogUnavailable, PgtideError
from pgtide.sinks.postgres import stager
from pgtide.sinks.postgres.plain_tasks import stage_from_files
from tests.sinks.postgres.replicas import Replica


def remove(file: Path) -> None:
    file.unlink()


def tear(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("harm", "expected"),
    [(remove, LogUnavailable), pytest.param(tear, LogError, marks=pytest.mark.slow)],
)
def test_a_file_that_a_task_does_not_find_as_it_was(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, harm: Any, expected: type[PgtideError]
) -> None:
    """One that is gone may have been replaced: a new attempt looks for its rows anew."""
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY, n int);\nINSERT INTO t VALUES (1);\n")
    replica.begin_stream()
    replica.captured.run("UPDATE t SET n = id;\n")
    kept: list[tuple[Path, bytes]] = []

    def harmed(spark: SparkSession, log: Any, census: Any, *rest: Any) -> Any:
        file = log.local / census.files[0].path
        kept.append((file, file.read_bytes()))
        harm(file)
        return stage_from_files(spark, log, census, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(stager, "stage_from_files", harmed)
        with pytest.raises(expected) as failed:
            replica.follow()
    assert type(failed.value) is expected
    ((file, content),) = kept
    file.write_bytes(content)
    replica.follow()
    replica.check_equal("t")
