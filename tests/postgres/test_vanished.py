"""Queries that meet something while it is being dropped fail, and are worth another try."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pgtide.errors import SourceError, SourceExhausted, TargetUnavailable
from pgtide.postgres.connection import translate
from pgtide.sinks.postgres.failures import target_error
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

WAITING = """
SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE NOT granted AND datname = current_database()
"""


def test_what_goes_is_no_failure_for_good(database: Database) -> None:
    database.execute("CREATE SEQUENCE going")

    def look() -> psycopg.Error | None:
        try:
            database.execute("SELECT pg_sequence_last_value('going'::regclass)")
        except psycopg.Error as error:
            return error
        return None

    with ThreadPoolExecutor(1) as pool, database.connect(autocommit=False) as dropping:
        dropping.execute("DROP SEQUENCE going")
        looking = pool.submit(look)
        wait_until(lambda: database.execute(WAITING), "the look to wait for the lock")
        dropping.commit()
        error = looking.result()
    assert error is not None
    assert isinstance(translate(error), SourceExhausted)
    met = target_error(error, "it is read")
    assert isinstance(met, TargetUnavailable)
    assert "REINDEX SYSTEM" in met.hint  # for one that does not pass


def test_other_mistakes_of_a_server_are(database: Database) -> None:
    raising = "DO $$ BEGIN RAISE 'unexpected relkind' USING ERRCODE = 'XX000'; END $$"
    with pytest.raises(psycopg.errors.InternalError_) as raised:
        database.execute(raising)
    assert type(translate(raised.value)) is SourceError
