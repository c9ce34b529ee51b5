"""A session that writes while the source is made read-only."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until


def commit_once_read_only(database: Database, session: psycopg.Connection[Any]) -> None:
    """Commit when new transactions cannot write; not asked there, where sessions are ended."""
    query = "SELECT count(*) FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase"
    with psycopg.connect(database.server.url(), autocommit=True) as elsewhere:

        def is_read_only() -> bool:
            found = elsewhere.execute(f"{query} WHERE datname = %s".encode(), [database.name])
            return found.fetchone() == (1,)

        wait_until(is_read_only, "a source that is read-only", 60)
    session.execute("COMMIT")
