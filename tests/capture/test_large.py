"""Memory of capture is bounded by configuration, whatever the source does (I8)."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer

LIMIT_MB = 600

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def captured_within(captured: Captured, gear: str, timeout_s: float) -> dict[str, int]:
    """Capture until current in a process of its own; its figures, memory checked."""
    process = captured.spawn(gear, until_current=True)
    try:
        assert process.wait(timeout_s) == 0, captured.output()
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    figures: dict[str, int] = json.loads(captured.output().splitlines()[-1])
    print(figures)
    assert figures["peak_kb"] < LIMIT_MB * 1024, captured.output()
    return figures


@pytest.mark.parametrize("gear", ["live", "auto"])
def test_one_transaction_of_five_million_rows(
    make_server: MakeServer, make_captured: MakeCaptured, gear: str
) -> None:
    """The server asks for feedback all the while, and drops who does not answer."""
    server = make_server(wal_sender_timeout="5s")
    captured = make_captured(Database.create(server))
    captured.execute("CREATE TABLE t (id int PRIMARY KEY, v text, at timestamptz)")
    captured.execute(
        "INSERT INTO t SELECT n, md5(n::text), now() FROM generate_series(1, 5000000) n"
    )
    figures = captured_within(captured, gear, 600)
    assert figures["events"] == 5_000_001
    assert "trying again" not in captured.output()
    rows = lasts = 0
    next_id = 1
    for batch in captured.log.batches():
        ids = pc.list_element(batch.column("after").drop_null(), 0).cast(pa.int64())
        assert (np.asarray(ids) == np.arange(next_id, next_id + len(ids))).all()
        next_id += len(ids)
        rows += len(ids)
        lasts += int(np.asarray(batch.column("last")).sum())
    assert (rows, lasts) == (5_000_000, 2)


@pytest.mark.parametrize("gear", ["live", "bulk"])
def test_two_hundred_tables_of_five_hundred_columns(make_captured: MakeCaptured, gear: str) -> None:
    captured = make_captured()
    columns = ", ".join(f"column_with_a_long_name_{n} text" for n in range(499))
    values = ", ".join(f"'v{n}_' || k" for n in range(499))
    with captured.database.connect() as connection:
        for table in range(200):
            connection.execute(f"CREATE TABLE t{table} (id int PRIMARY KEY, {columns})".encode())
        for table in range(200):
            query = f"INSERT INTO t{table} SELECT k, {values} FROM generate_series(1, 20) k"
            connection.execute(query.encode())
    figures = captured_within(captured, gear, 300)
    assert figures["events"] == 200 + 200 * 20
    shapes = {e.shape.table: len(e.shape.columns) for e in captured.events("insert") if e.shape}
    assert shapes == {f"t{table}": 500 for table in range(200)}


@pytest.mark.parametrize("gear", ["live", "bulk"])
def test_one_huge_value(make_captured: MakeCaptured, gear: str) -> None:
    """A message larger than every buffer."""
    captured = make_captured()
    captured.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    captured.execute("INSERT INTO t SELECT 1, repeat('x', 60000000)")
    captured.execute("INSERT INTO t SELECT n, 'small' FROM generate_series(2, 100) n")
    captured_within(captured, gear, 60)
    sizes = [len(e.after["v"]) for e in captured.events("insert") if e.after]  # type: ignore[arg-type]
    assert sizes == [60_000_000] + [5] * 99
