"""Making the source read-only, and taking that back.

``ALTER DATABASE … SET default_transaction_read_only`` counts for sessions that begin afterwards.
So those that are there are ended: idle ones at once, the others when their transaction is over, or
after a while. They come back read-only. When it is taken back, what began meanwhile is ended too.
pgtide's own sessions stay: whatever they do works in read-only transactions.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from pgtide.config import Config
from pgtide.errors import PrivilegeMissing, SourceError
from pgtide.postgres.connection import connect, translate
from pgtide.postgres.verdict import Check, fail, ok, warn

NAME = "pgtide cutover"
SETTING = "default_transaction_read_only"
GRACE_S = 10.0  # that open transactions have to end by themselves
PATIENCE_S = 10.0  # until sessions that were told to end are gone
POLL_S = 0.1

_OTHERS = """
SELECT pid, state = 'idle' FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
  AND pid <> pg_backend_pid() AND application_name !~ '^pgtide'
  AND backend_start {} %s
"""
_CONFIGURED = """
SELECT substr(item, length(%(name)s) + 2)
FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase, unnest(s.setconfig) item
WHERE d.datname = current_database() AND s.setrole = 0
  AND split_part(item, '=', 1) = %(name)s
"""
_OVERRIDES = """
SELECT DISTINCT r.rolname FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole,
     unnest(s.setconfig) item
WHERE split_part(item, '=', 1) = %s AND split_part(item, '=', 2) <> 'on'
ORDER BY 1
"""
_PREPARED = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"


@dataclass
class ReadOnly:
    """The source between ``begin`` and ``undo``; what is begun stays when it is not undone."""

    config: Config
    stop: threading.Event = field(default_factory=threading.Event)
    _began: datetime | None = field(default=None, init=False)
    _before: str | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self._conn = connect(self.config.source.admin.reveal(), application_name=NAME)
        # Of a database that is read-only already.
        self._conn.execute(f"SET {SETTING} = off".encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._conn.close()

    @property
    def undo_sql(self) -> str:
        """What makes the source writable again; a session there is read-only by itself."""
        return f"SET {SETTING} = off; {self._alter(self._before)};"

    def begin(self) -> list[Check]:
        """Let nobody write any more."""
        row = self._conn.execute(_CONFIGURED, {"name": SETTING}).fetchone()
        self._before = row[0] if row else None
        try:
            self._conn.execute(self._alter("on").encode())
        except psycopg.errors.InsufficientPrivilege as exc:
            raise PrivilegeMissing(
                "this role may not make the source read-only",
                detail=f"{exc.diag.message_primary}.",
                hint="Set source.admin_url to the owner of the database or a superuser.",
            ) from exc
        except psycopg.Error as exc:
            raise translate(exc) from exc
        self._began = self._now()
        checks = [self._end_sessions("<=", grace_s=GRACE_S)]
        (prepared,) = self._conn.execute(_PREPARED).fetchone() or (0,)
        if prepared:
            hint = "COMMIT PREPARED or ROLLBACK PREPARED each of: SELECT * FROM pg_prepared_xacts"
            checks.append(fail("prepared", f"{prepared} prepared transactions are open", hint))
        if names := [name for (name,) in self._conn.execute(_OVERRIDES, [SETTING])]:
            said = f"sessions of {', '.join(names)} may still write: {SETTING} is set for them"
            checks.append(warn("read-only", said, f"ALTER ROLE … RESET {SETTING}"))
        return checks

    def undo(self) -> None:
        """Let everybody write again, as it was before ``begin``."""
        if self._began is None:
            return
        try:
            self._conn.execute(self._alter(self._before).encode())
        except psycopg.Error as exc:
            raise SourceError(
                "the source is still read-only",
                detail=f"That could not be taken back: {translate(exc).message}.",
                hint=f"At the source run: {self.undo_sql}",
            ) from exc
        if self._before != "on":
            self._end_sessions(">=", grace_s=0.0)
        self._began = None

    # -- sessions of others -------------------------------------------------------------

    def _end_sessions(self, which: str, *, grace_s: float) -> Check:
        """End sessions of before (``<=``) or after (``>=``) it began."""
        ended = 0
        refused: set[int] = set()
        begin = time.monotonic()
        while left := self._others(which):
            late = time.monotonic() - begin
            if late > grace_s + PATIENCE_S or set(left) <= refused:
                hint = "Let source.admin_url be a superuser, or end them yourself."
                said = f"{len(left)} sessions that can write could not be ended"
                return fail("read-only", said, hint)
            for pid, idle in left.items():
                if (idle or late > grace_s) and pid not in refused:
                    ended += self._terminate(pid, refused)
            if self.stop.wait(POLL_S):
                break
        return ok("read-only", f"new transactions cannot write; {ended} sessions were ended")

    def _others(self, which: str) -> dict[int, bool]:
        query = _OTHERS.format(which)
        return {pid: bool(idle) for pid, idle in self._conn.execute(query.encode(), [self._began])}

    def _terminate(self, pid: int, refused: set[int]) -> int:
        try:
            row = self._conn.execute("SELECT pg_terminate_backend(%s)", [pid]).fetchone()
        except psycopg.errors.InsufficientPrivilege:
            refused.add(pid)
            return 0
        return int(bool(row and row[0]))

    def _alter(self, value: str | None) -> str:
        name = sql.Identifier(self._conn.info.dbname)
        if value is None:
            query = sql.SQL("ALTER DATABASE {} RESET {}").format(name, sql.SQL(SETTING))
        else:
            query = sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                name, sql.SQL(SETTING), sql.Literal(value)
            )
        return query.as_string(None)

    def _now(self) -> datetime:
        row = self._conn.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        now: datetime = row[0]
        return now
