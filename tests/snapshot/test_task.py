"""What a snapshot's task says when it cannot write what it read."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pgtide.errors import LogUnavailable
from pgtide.position import Lsn
from pgtide.postgres.connection import connect
from pgtide.snapshot.chunks import Chunk
from pgtide.snapshot.tables import Heap
from pgtide.snapshot.task import Copier
from tests.fixtures.databases import Database

FILE_LIMIT_BYTES = 64 << 10


@contextmanager
def small_files() -> Iterator[None]:
    """No file of this process may grow beyond the limit: the system refuses it, as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_an_answer(database: Database, tmp_path: Path) -> None:
    """And not an error of Java's that the driver would take for a defect."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT n, md5(n::text) FROM generate_series(1, 20000) n")
    ((oid,),) = database.execute("SELECT 't'::regclass::oid::bigint")
    heap = Heap(oid, "public", "t", by_page=True)
    chunk = Chunk(0, heap, "public", "t", 1, ("id", "v"), (), None, None, 0)
    (tmp_path / "log" / "changes").mkdir(parents=True)
    with connect(database.url) as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        row = conn.execute("SELECT pg_catalog.pg_export_snapshot()").fetchone()
        assert row is not None
        copier = Copier(database.url, row[0], str(tmp_path / "log"), {}, Lsn(8), datetime.now(UTC))
        with small_files():
            (refused,) = copier([[chunk]])
        (fine,) = copier([[chunk]])
    assert isinstance(refused.error, LogUnavailable)
    assert "File too large" in refused.error.detail
    assert (fine.error, fine.rows) == (None, {0: 20_000})


def test_values_of_rows_are_not_told(database: Database, tmp_path: Path) -> None:
    """A condition that cannot be computed of some row: Postgres's own message quotes it."""
    database.execute("CREATE TABLE t (v text); INSERT INTO t VALUES ('1'), ('a secret')")
    ((oid,),) = database.execute("SELECT 't'::regclass::oid::bigint")
    heap = Heap(oid, "public", "t", by_page=True)
    chunk = Chunk(0, heap, "public", "t", 1, ("v",), ("v::int > 0",), None, None, 0)
    (tmp_path / "log" / "changes").mkdir(parents=True)
    with connect(database.url) as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        row = conn.execute("SELECT pg_catalog.pg_export_snapshot()").fetchone()
        assert row is not None
        copier = Copier(database.url, row[0], str(tmp_path / "log"), {}, Lsn(8), datetime.now(UTC))
        (outcome,) = copier([[chunk]])
    assert outcome.error is not None
    assert "secret" not in outcome.error.message + outcome.error.detail
