"""Sessions that do something just while the source is made read-only, or given back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from pgtide.config import Config
from pgtide.cutover.read_only import ReadOnly
from tests.cutover.writers import commit_once_read_only
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

WRITE = "INSERT INTO orders VALUES (1)"
WRITABLE = "SELECT current_setting('default_transaction_read_only') = 'off'"
STARTING_S = 2  # that the server holds a session which has read its settings
STARTING = """
SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = objid
WHERE datname = %s AND classid = 'pg_database'::regclass AND mode = 'RowExclusiveLock'
"""


@pytest.fixture
def source(database: Database) -> Iterator[ReadOnly]:
    database.execute("CREATE TABLE orders (id int)")
    config = Config.model_validate({"source": {"url": database.url}, "log": {"path": "unused"}})
    with ReadOnly(config) as read_only:
        yield read_only


class Watched:
    """A connection that does something before the first query with a certain word."""

    def __init__(self, conn: psycopg.Connection[Any], word: str, do: Callable[[], object]) -> None:
        self._conn = conn
        self._word = word
        self._do: Callable[[], object] | None = do

    def execute(self, query: Any, params: Any = None) -> psycopg.Cursor[Any]:
        if self._do is not None and self._word in str(query):
            do, self._do = self._do, None
            do()
        return self._conn.execute(query, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)


def before(source: ReadOnly, word: str, do: Callable[[], object]) -> None:
    source._conn = Watched(source._conn, word, do)  # type: ignore[assignment]


def test_a_transaction_that_began_since_its_session_was_listed_may_end(
    source: ReadOnly, database: Database
) -> None:
    with database.connect() as session:
        commit = threading.Thread(target=commit_once_read_only, args=(database, session))

        def write() -> None:
            session.execute("BEGIN")
            session.execute(WRITE)
            commit.start()

        before(source, "pg_terminate_backend", write)
        (check,) = source.begin()
        commit.join()
        assert (check.level, check.message.split("; ")[1]) == ("ok", "1 sessions were ended")
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
    assert database.execute("SELECT count(*) FROM orders") == [(1,)]


def test_a_session_that_was_starting_is_ended(source: ReadOnly, database: Database) -> None:
    """It has read its settings before they were changed, and nobody lists it yet."""
    delayed = f"-c post_auth_delay={STARTING_S}"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(database.server.url()) as elsewhere:
        connecting = pool.submit(lambda: psycopg.connect(database.url, options=delayed))
        elsewhere.autocommit = True

        def starts() -> bool:
            return elsewhere.execute(STARTING, [database.name]).fetchone() == (1,)

        wait_until(starts, "a session that has read its settings")
        (check,) = source.begin()
        assert check.level == "ok"
        with pytest.raises(psycopg.OperationalError):  # while it connects, or then
            connecting.result().execute(WRITE)
    assert database.execute("SELECT count(*) FROM orders") == [(0,)]


def test_sessions_that_begin_after_the_source_is_given_back_live(
    source: ReadOnly, database: Database
) -> None:
    source.begin()
    with database.connect() as during:
        after: list[psycopg.Connection[Any]] = []
        before(source, "pg_stat_activity", lambda: after.append(database.connect()))
        source.undo()
        with pytest.raises(psycopg.OperationalError):
            during.execute("SELECT 1")
    with after[0] as session:
        assert session.execute(WRITABLE).fetchone() == (True,)
        session.execute(WRITE)


def test_a_stop_is_no_success_and_spares_who_can_write(
    source: ReadOnly, database: Database
) -> None:
    with database.connect(autocommit=False) as writing:
        writing.execute(WRITE)
        source.stop.set()
        (check,) = source.begin()
        assert check.level == "fail"
        source.undo()
        writing.commit()
    assert database.execute("SELECT count(*) FROM orders") == [(1,)]
