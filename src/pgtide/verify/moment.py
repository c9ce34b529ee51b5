"""The moment that a verification is about: a snapshot of the source, and where the WAL was.

    L1 ── snapshot S ── L2          positions of the WAL before and after S was taken

What S sees was committed before L2. What was committed before L1 is seen by S, except for
transactions whose commit is written but which have not become visible yet: Postgres writes the
record first, and with a synchronous standby the time in between has no limit. Those are known by
their transaction ids. So once a target has everything up to L2, its rows are those of S, but for
rows that were changed after L1 or by such a transaction: rows in flight.

Tables are locked in ACCESS SHARE mode before S is taken, as pg_dump does: TRUNCATE or a rewrite
would otherwise change what S sees. Each session locks for itself and at once: a lock that is asked
for later would queue behind a TRUNCATE that waits for us. Whoever waits for such a table is not
kept waiting for long: the moment is given up then, and taken again later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg

from pgtide.errors import SourceExhausted, Yielded
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection, connect, no_timeouts, translate
from pgtide.postgres.visibility import Visibility

T = TypeVar("T")

NAME = "pgtide verify"
EXPORT = "SELECT pg_export_snapshot()"
LOCK_TIMEOUT_S = 3
ATTEMPTS = 10  # to get all locks
YIELD_S = 30  # that somebody may wait for one of the tables
LOOK_S = 1.0  # between two looks whether somebody does
CLOCK_SLACK = timedelta(minutes=1)
HEARTBEAT_PREFIX = "pgtide.heartbeat"  # capture moves on with it, and logs nothing

_SESSION = (
    "SET jit = off; SET max_parallel_workers_per_gather = 0; SET row_security = off;"
    # Keys in flight are looked up in a hash table only if that fits: else one by one, for each row.
    " SET work_mem = '256MB'"
)
_LOCK_TIMEOUT = f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'"

# Whoever has a transaction id when S is taken has it now, or begins to write after now.
_OLDEST = """
SELECT CASE WHEN pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') THEN least(now(),
    (SELECT min(xact_start) FROM pg_stat_activity WHERE backend_xid IS NOT NULL),
    (SELECT min(prepared) FROM pg_prepared_xacts)) END
"""
_WAITING = """
SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'
    AND relation = ANY (%s::oid[]) AND waitstart < clock_timestamp() - make_interval(secs => %s)
"""


class Changed(Exception):
    """The tables are not those any more that were locked: look again."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A snapshot and its surroundings."""

    before: Lsn
    after: Lsn
    visibility: Visibility
    oldest: datetime | None  # nothing hidden was committed before; None: that cannot be told


class LockedSnapshot:
    """A snapshot that several sessions see, with locks on the tables that are looked at."""

    def __init__(self, url: str, relations: Mapping[int, str], sessions: int = 1) -> None:
        """``relations``: quoted names by oid; ``sessions``: how many are to read them."""
        self._url = url
        self._relations = relations
        self._count = sessions
        self._looked_at = time.monotonic()
        self._all: list[SqlConnection] = []

    def _attempts(self, take: Callable[[], T]) -> T:
        """What ``take`` gives, tried again while somebody else needs a table."""
        try:
            for attempt in range(ATTEMPTS):
                try:
                    return take()
                except (psycopg.errors.LockNotAvailable, Changed):
                    self.close()
                    time.sleep(0.1 * attempt)  # somebody else needs the table first
        except psycopg.errors.UndefinedTable as exc:
            self.close()
            raise Yielded(
                "a table that is to be verified was dropped or renamed",
                hint="Try again: pgtide verify",
            ) from exc
        except psycopg.Error as exc:
            self.close()
            raise translate(exc) from exc
        except BaseException:
            self.close()
            raise
        raise SourceExhausted(
            "a table that is to be verified is locked",
            detail="Somebody changes or truncates it, again and again or for long.",
            hint="Try again later: pgtide verify",
        )

    def _open(self) -> None:
        """The sessions, each with its locks and without a snapshot yet."""
        for _ in range(self._count + 1):
            self._all.append(connect(self._url, application_name=NAME))
            self._begin(self._all[-1])

    def _begin(self, session: SqlConnection) -> None:
        session.execute(_SESSION)
        no_timeouts(session)
        session.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; {_LOCK_TIMEOUT}")
        for name in self._relations.values():
            session.execute(f"LOCK TABLE ONLY {name} IN ACCESS SHARE MODE".encode())

    def _share(self, name: str) -> None:
        """Let the other sessions see what the keeper does."""
        for session in self.sessions:
            session.execute(f"SET TRANSACTION SNAPSHOT '{name}'".encode())

    @property
    def keeper(self) -> SqlConnection:
        """The session that took the snapshot."""
        return self._all[0]

    @property
    def sessions(self) -> list[SqlConnection]:
        """Others that see the same rows, each for one thread."""
        return self._all[1:]

    def check(self) -> None:
        """Raise Yielded when somebody has waited long enough for one of the tables."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        row = self.keeper.execute(_WAITING, [list(self._relations), YIELD_S]).fetchone()
        if row is not None and row[0]:
            raise Yielded(
                "somebody needs a table that is being verified for himself",
                detail=f"A lock on it has been waited for longer than {YIELD_S} s.",
                hint="Try again later: pgtide verify",
            )

    def close(self) -> None:
        for connection in self._all:
            with suppress(psycopg.Error):
                connection.close()
        self._all.clear()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SourceMoment(LockedSnapshot):
    """Holds a moment of the source."""

    def __enter__(self) -> Self:
        self.moment = self._attempts(self._take)
        return self

    def _take(self) -> Moment:
        with connect(self._url, application_name=NAME) as probe:
            self._open()
            oldest = _value(probe, _OLDEST)
            before = Lsn.parse(_value(probe, "SELECT pg_current_wal_insert_lsn()::text"))
            name = _value(self.keeper, EXPORT)
            seen = Visibility.parse(_value(self.keeper, "SELECT pg_current_snapshot()::text"))
            after = Lsn.parse(_value(probe, "SELECT pg_current_wal_insert_lsn()::text"))
            nudge(probe)
        self._share(name)
        return Moment(
            before=before,
            after=after,
            visibility=seen,
            oldest=None if oldest is None else oldest - CLOCK_SLACK,
        )


def nudge(connection: SqlConnection) -> None:
    """Write something that capture comes to: the log of an idle server stands still for seconds."""
    with suppress(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT pg_logical_emit_message(true, %s, '')", [HEARTBEAT_PREFIX])


def _value(connection: SqlConnection, query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return row[0]
