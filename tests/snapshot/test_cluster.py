"""Tasks on executors of a real cluster, which write to a store that all of them reach."""

from __future__ import annotations

import json

import pytest

from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.s3 import ObjectStore
from tests.fixtures.spark import Cluster
from tests.snapshot.taking import reads, source, state

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(900)]

PROGRAM = """
import json
import sys
import pgtide
from pgtide.config import Config
from pgtide.snapshot.initial import InitialSnapshot

spark = pgtide.session(**json.loads(sys.argv[1]))
snapshot = InitialSnapshot(Config.model_validate(json.loads(sys.argv[2])), spark)
assert snapshot.take()
print(json.dumps({"rows": snapshot.progress.rows, "point": str(snapshot.progress.point)}))
"""


def test_a_snapshot_on_a_cluster(
    cluster: Cluster, object_store: ObjectStore, make_captured: MakeCaptured, database: Database
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO t SELECT n, repeat('x', 99) FROM generate_series(1, 20000) n")
    captured = make_captured(
        database,
        snapshot="initial",
        log={"path": object_store.path(), "storage": object_store.options},
    )
    settings = {**captured.settings, "history": {"chunk_bytes": "256kB", "parallelism": 2}}
    done = json.loads(cluster.run(PROGRAM, json.dumps(settings)).splitlines()[-1])
    assert done["rows"] == 20_000
    captured.check_log()
    assert reads(captured, "t") == source(captured, "SELECT id::text, note FROM t")
    database.execute("DELETE FROM t WHERE id > 10")
    captured.capture()
    assert sorted(map(int, state(captured, "t"))) == list(range(1, 11))
    for log in cluster.work.rglob("std*"):
        assert object_store.options["AWS_SECRET_ACCESS_KEY"] not in log.read_text()
