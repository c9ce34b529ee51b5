"""The session on a real standalone cluster: a master and two workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.spark import WORKERS, Cluster

# Five JVMs start on the cores of one machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(360)]

PROGRAM = """
import json
import sys
import pgtide
spark = pgtide.session(**json.loads(sys.argv[1]))
spark.range(0, 1000, 1, 4).write.format("delta").save(sys.argv[2])
frame = spark.read.format("delta").load(sys.argv[2])
print(frame.count(), spark.sparkContext.master)
"""


def test_delta_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    out = cluster.run(PROGRAM, str(tmp_path / "table"))
    assert out.split() == ["1000", cluster.url]
    assert len(list(cluster.work.glob("app-*/*"))) == WORKERS
