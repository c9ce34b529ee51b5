"""A batch of rows, TRUNCATE, rows, DDL and rows, cut off after each of its steps: each counts once.

The batch is delivered as far as one more step every time, as if the process had died behind it;
then to its end, and once more from the beginning of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import TargetUnavailable
from pgtide.pipeline.steps import Step
from pgtide.sinks.delta.lake_table import LakeTable
from tests.fixtures.capture import Captured
from tests.sinks.lakes import deliver, lose_checkpoint, table

BEGINNING = """CREATE TABLE t (id int PRIMARY KEY, name text);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1, 'a'), (2, 'b');
"""
BATCH = """UPDATE t SET name = 'A' WHERE id = 1;
TRUNCATE t;
INSERT INTO t VALUES (1, 'anew'), (3, 'c');
ALTER TABLE t ADD note text DEFAULT 'n';
UPDATE t SET name = 'C' WHERE id = 3;"""

STATE_STEPS = ["Rows", "Truncated", "Rows", "Reshaped", "Rows"]
MIRROR_STEPS = STATE_STEPS[1:]  # what the TRUNCATE takes away is not written
EVENT_STEPS = ["Rows", "Reshaped", "Rows"]  # to them a TRUNCATE is an event among others

MIRROR = [(1, "anew", "n"), (3, "C", "n")]
VERSIONS = [
    (1, "A", None, False),
    (1, "a", None, False),
    (1, "anew", "n", True),
    (2, "b", None, False),
    (3, "C", "n", True),
    (3, "c", "n", False),
]
HISTORY = [
    ("insert", 1, "a", None),
    ("insert", 1, "anew", None),
    ("insert", 2, "b", None),
    ("insert", 3, "c", None),
    ("truncate", None, None, None),
    ("update", 1, "A", None),
    ("update", 3, "C", "n"),
]
PIVOT = [
    (1, "name", "a", "A", "u"),
    (1, "name", None, "a", "c"),
    (1, "name", None, "anew", "c"),
    (2, "name", None, "b", "c"),
    (3, "name", "c", "C", "u"),
    (3, "name", None, "c", "c"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "steps", "columns", "wanted"),
    [
        ("mirror", MIRROR_STEPS, "id name note", MIRROR),
        ("scd2", STATE_STEPS, "id name note is_current", VERSIONS),
        ("history", EVENT_STEPS, "_pgtide_op id name note", HISTORY),
        ("pivot", EVENT_STEPS, "id change_field old_value new_value crud_type", PIVOT),
    ],
)
def test_stopped_between_any_two_steps(
    spark: SparkSession,
    captured: Captured,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    steps: list[str],
    columns: str,
    wanted: list[Any],
) -> None:
    captured.run(BEGINNING)
    deliver(spark, captured, mode)
    captured.execute(BATCH)
    stops: list[type[Step]] = []

    apply = LakeTable._step

    for allowed in range(len(steps)):
        done: list[Step] = []

        def so_far(
            self: LakeTable,
            step: Step,
            later: Sequence[Step],
            allowed: int = allowed,
            done: list[Step] = done,
        ) -> None:
            if len(done) == allowed:
                stops.append(type(step))
                raise TargetUnavailable("stopped")
            apply(self, step, later)
            done.append(step)

        with monkeypatch.context() as patch:
            patch.setattr(LakeTable, "_step", so_far)
            with pytest.raises(TargetUnavailable, match="stopped"):
                deliver(spark, captured, mode)
    assert [stop.__name__ for stop in stops] == steps
    for _ in range(2):
        deliver(spark, captured, mode)
        rows = table(spark, captured, mode, "t").select(*columns.split()).collect()
        assert sorted((tuple(row) for row in rows), key=repr) == wanted
        lose_checkpoint(captured, mode)
