"""COPY from a real server: batches, odd tables, failures in the middle."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import pq, sql

from pgtide.errors import InvalidText, PgtideError, SourceError
from pgtide.postgres.connection import connect
from pgtide.snapshot.copying import copy_rows
from tests.fixtures.databases import Database


def copied(database: Database, query: str, width: int, **options: Any) -> list[Any]:
    with connect(database.url) as conn:
        batches = list(copy_rows(conn, sql.SQL(query), width, **options))
        assert conn.execute("SELECT 1").fetchone() == (1,), "the session can go on"
    return [row for batch in batches for row in batch.to_pylist()]


_texts = st.none() | st.text(
    st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from("\t\n\r\b\f\v\\N.")
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=50,
    deadline=None,
)
@given(rows=st.lists(st.tuples(_texts, _texts, _texts), max_size=20))
def test_what_the_server_has_is_what_comes(database: Database, rows: list[Any]) -> None:
    with connect(database.url) as conn:
        conn.execute("CREATE TEMP TABLE t (n serial, a text, b text, c text)")
        with conn.cursor() as cursor:
            cursor.executemany("INSERT INTO pg_temp.t (a, b, c) VALUES (%s, %s, %s)", rows)
        query = sql.SQL("SELECT a, b, c FROM pg_temp.t ORDER BY n")
        found = [
            r for batch in copy_rows(conn, query, 3, batch_bytes=64) for r in batch.to_pylist()
        ]
    assert found == [list(row) for row in rows]


def test_many_batches(database: Database) -> None:
    rows = copied(
        database,
        "SELECT n, repeat('x', n % 50) FROM generate_series(1, 20000) n",
        2,
        batch_bytes=10_000,
    )
    assert rows == [[str(n), "x" * (n % 50)] for n in range(1, 20_001)]


def test_a_row_larger_than_a_batch(database: Database) -> None:
    rows = copied(
        database, "SELECT repeat('x', 100000) FROM generate_series(1, 3)", 1, batch_bytes=1000
    )
    assert [len(row[0]) for row in rows] == [100_000] * 3


def test_tables_without_rows_and_without_columns(database: Database) -> None:
    database.execute("CREATE TABLE nothing ()")
    assert copied(database, "SELECT FROM public.nothing", 0) == []
    assert copied(database, "SELECT 1 WHERE false", 1) == []
    for _ in range(3):
        database.execute("INSERT INTO nothing DEFAULT VALUES")
    assert copied(database, "SELECT FROM public.nothing", 0) == [[], [], []]


def test_sixteen_hundred_columns(database: Database) -> None:
    columns = ", ".join(f"c{n} int DEFAULT {n}" for n in range(1600))
    database.execute(f"CREATE TABLE wide ({columns})")
    database.execute("INSERT INTO wide (c7) VALUES (NULL)")
    (row,) = copied(database, "SELECT * FROM public.wide", 1600)
    assert row == [None if n == 7 else str(n) for n in range(1600)]


def test_an_error_at_the_start(database: Database) -> None:
    with connect(database.url) as conn:
        with pytest.raises(SourceError):
            list(copy_rows(conn, sql.SQL("SELECT * FROM public.absent"), 1))
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_an_error_in_the_middle(database: Database) -> None:
    query = "SELECT 1 / (5000 - n) FROM generate_series(1, 10000) n"
    with connect(database.url) as conn, pytest.raises(SourceError):
        list(copy_rows(conn, sql.SQL(query), 1, batch_bytes=1000))


def test_the_server_ends_the_session(database: Database) -> None:
    with connect(database.url) as conn:
        batches = copy_rows(
            conn, sql.SQL("SELECT n FROM generate_series(1, 10000000) n"), 1, batch_bytes=1000
        )
        assert isinstance(next(batches), pa.ListArray)
        database.execute("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])
        with pytest.raises(PgtideError):
            list(batches)


def test_whoever_stops_reading_loses_the_session(database: Database) -> None:
    with connect(database.url) as conn:
        batches = copy_rows(
            conn, sql.SQL("SELECT n FROM generate_series(1, 10000000) n"), 1, batch_bytes=1000
        )
        next(batches)
        batches.close()
        assert conn.closed


def test_it_runs_in_the_open_transaction(database: Database) -> None:
    with connect(database.url) as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        conn.execute("SELECT pg_catalog.pg_current_snapshot()")
        database.execute("CREATE TABLE later (n int)")
        database.execute("INSERT INTO later VALUES (1)")
        assert list(copy_rows(conn, sql.SQL("SELECT n FROM public.later"), 1)) == []
        assert conn.pgconn.transaction_status == pq.TransactionStatus.INTRANS


def test_bytes_that_are_no_utf8(database: Database) -> None:
    name = f"{database.name}_ascii"
    database.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    try:
        url = psycopg.conninfo.make_conninfo(database.url, dbname=name)
        with connect(url) as conn, pytest.raises(InvalidText):
            list(copy_rows(conn, sql.SQL("SELECT E'\\xff'::text"), 1))
    finally:
        database.execute(f"DROP DATABASE {name}")
