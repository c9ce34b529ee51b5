"""The log comes again in other batches: what a mirror has already is not done a second time."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pgtide.pipeline.reading import LogFrames
from pgtide.position import Lsn, Position
from tests.fixtures.capture import Captured
from tests.pipeline.test_mirror import check_equal, run_pipeline
from tests.sinks.lakes import lose_checkpoint

LARGE = """CREATE TABLE t (id int PRIMARY KEY, n int, doc text);
ALTER TABLE t ALTER doc SET STORAGE EXTERNAL;
INSERT INTO t VALUES (1, 0, repeat('x', 3000));
"""
UNSENT = "ALTER TABLE t ADD c int;\nUPDATE t SET n = 1;\n"


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(UNSENT + "DELETE FROM t;\n", id="delete"),
        pytest.param(UNSENT + "TRUNCATE t;\n", id="truncate"),
        pytest.param(UNSENT + "DELETE FROM t;\nINSERT INTO t VALUES (9, 9, 'x', 9);\n", id="more"),
        pytest.param(
            f"BEGIN;\n{UNSENT}ALTER TABLE t ADD d int;\nDELETE FROM t;\nCOMMIT;\n", id="one"
        ),
    ],
)
def test_a_row_that_is_gone(spark: SparkSession, captured: Captured, commands: str) -> None:
    """An update that lacks a value finds no row to take it from: it was deleted since."""
    captured.run(LARGE + commands)
    captured.capture()
    places = [Position(Lsn(row["lsn"]), row["seq"]) for row in captured.rows()]
    last = Position.end_of(places[-1].lsn)
    for every in (len(places), 1, 2):
        with pytest.MonkeyPatch.context() as patch:
            cuts = [*places[every - 1 : -1 : every], last]
            patch.setattr(LogFrames, "cuts", lambda *_, cuts=cuts: cuts)
            run_pipeline(spark, captured)
        check_equal(spark, captured, "t")
        lose_checkpoint(captured, "lake")
