"""The moment that a verification is about: a snapshot of the source, and where the WAL was.

    L1 ── snapshot S ── L2          positions of the WAL before and after S was taken

What S sees was committed before L2. What was committed before L1 is seen by S, except for
transactions whose commit is written but which have not become visible yet: Postgres writes the
record first, and with a synchronous standby the time in between has no limit. Those are known by
their transaction ids. So once a target has everything up to L2, its rows are those of S, but for
rows that were changed after L1 or by such a transaction: rows in flight.

Tables are locked in ACCESS SHARE mode before S is taken, as pg_dump does: TRUNCATE or a rewrite
would otherwise change what S sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

import psycopg

from pgtide.errors import SourceExhausted
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection, connect, translate

NAME = "pgtide verify"
LOCK_TIMEOUT_S = 10
CLOCK_SLACK = timedelta(minutes=1)
HEARTBEAT_PREFIX = "pgtide.heartbeat"  # capture moves on with it, and logs nothing

_SESSION = "SET jit = off; SET max_parallel_workers_per_gather = 0; SET row_security = off"
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"

# Whoever has a transaction id when S is taken has it now, or begins to write after now.
_OLDEST = """
SELECT CASE WHEN pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') THEN least(now(),
    (SELECT min(xact_start) FROM pg_stat_activity WHERE backend_xid IS NOT NULL),
    (SELECT min(prepared) FROM pg_prepared_xacts)) END
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """A snapshot and its surroundings."""

    snapshot: str  # its name, for other sessions
    before: Lsn
    after: Lsn
    xmax: int  # 64 bits
    running: frozenset[int]  # transactions below xmax that it does not see
    oldest: datetime | None  # none of them was committed before; None: that cannot be told

    def sees(self, xid: int) -> bool:
        """Whether a transaction of the log, with 32 bits of its id, is seen."""
        full = self.xmax + ((xid - self.xmax + 2**31) % 2**32) - 2**31
        return full < self.xmax and full not in self.running


class SourceMoment:
    """Holds a moment of the source, with locks on the tables that are looked at."""

    def __init__(self, url: str, relations: Sequence[str]) -> None:
        self._url = url
        self._relations = relations
        self._keeper = connect(url, application_name=NAME)
        self._sessions: list[SqlConnection] = []

    def __enter__(self) -> Self:
        try:
            with connect(self._url, application_name=NAME) as probe:
                self.moment = self._take(probe)
        except psycopg.errors.LockNotAvailable as exc:
            self.close()
            raise SourceExhausted(
                "a table that is to be verified is locked",
                detail=f"Waited {LOCK_TIMEOUT_S} s for somebody who changes or truncates it.",
                hint="Try again later: pgtide verify",
            ) from exc
        except psycopg.Error as exc:
            self.close()
            raise translate(exc) from exc
        except BaseException:
            self.close()
            raise
        return self

    def _take(self, probe: SqlConnection) -> Moment:
        keeper = self._keeper
        keeper.execute(f"{_SESSION}; SET idle_in_transaction_session_timeout = 0; {_BEGIN}")
        keeper.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
        for relation in self._relations:
            keeper.execute(f"LOCK TABLE ONLY {relation} IN ACCESS SHARE MODE".encode())
        oldest = _value(probe, _OLDEST)
        before = Lsn.parse(_value(probe, "SELECT pg_current_wal_insert_lsn()::text"))
        name = _value(keeper, "SELECT pg_export_snapshot()")
        _, xmax, running = _value(keeper, "SELECT pg_current_snapshot()::text").split(":")
        after = Lsn.parse(_value(probe, "SELECT pg_current_wal_insert_lsn()::text"))
        nudge(probe)
        return Moment(
            snapshot=name,
            before=before,
            after=after,
            xmax=int(xmax),
            running=frozenset(int(xid) for xid in running.split(",") if xid),
            oldest=None if oldest is None else oldest - CLOCK_SLACK,
        )

    @property
    def keeper(self) -> SqlConnection:
        """The session that took the snapshot."""
        return self._keeper

    def session(self) -> SqlConnection:
        """One more session that sees the same rows."""
        connection = connect(self._url, application_name=NAME)
        self._sessions.append(connection)
        try:
            connection.execute(f"{_SESSION}; SET idle_in_transaction_session_timeout = 0")
            connection.execute(_BEGIN)
            connection.execute(f"SET TRANSACTION SNAPSHOT '{self.moment.snapshot}'".encode())
        except psycopg.Error as exc:
            raise translate(exc) from exc
        return connection

    def close(self) -> None:
        for connection in (*self._sessions, self._keeper):
            with suppress(psycopg.Error):
                connection.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def nudge(connection: SqlConnection) -> None:
    """Write something that capture comes to: the log of an idle server stands still for seconds."""
    with suppress(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT pg_logical_emit_message(true, %s, '')", [HEARTBEAT_PREFIX])


def _value(connection: SqlConnection, query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return row[0]
