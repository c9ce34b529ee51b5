"""Making the source read-only, and taking that back.

``ALTER DATABASE … SET default_transaction_read_only`` counts for sessions that begin afterwards.
So those that are there are ended: idle ones at once, the others when their transaction is over, or
after a while. They come back read-only. When it is taken back, what began meanwhile is ended too.
pgtide's own sessions stay: whatever they do works in read-only transactions.

Contract: when ``begin`` is well, every session that could write is gone, and whatever it committed
is before the next position of the WAL. A transaction that was open then had ``GRACE_S`` to end.
Postgres knows no "terminate if idle": each session is looked at in the statement that ends it, and
a transaction that begins between the two fails at its client; it is never committed and missing.
"""

from __future__ import annotations

import logging
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
from pgtide.postgres.slot import capture_pids
from pgtide.postgres.verdict import Check, fail, ok, warn

logger = logging.getLogger(__name__)

NAME = "pgtide cutover"
SETTING = "default_transaction_read_only"
GRACE_S = 10.0  # that open transactions have to end by themselves
PATIENCE_S = 10.0  # until sessions that were told to end are gone
POLL_S = 0.1

_OTHERS = """
SELECT {} FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
  AND pid <> pg_backend_pid() AND application_name !~ '^pgtide' AND backend_start <= %s
"""
_LIST = _OTHERS.format("pid")
# One statement, so that nothing but the server's own two steps lies between look and end.
_END = _OTHERS.format("pg_terminate_backend(pid)") + "AND pid = %s AND (state = 'idle' OR %s)"
# A session that starts is listed once it has read its settings. From before that until it is
# listed it holds this lock, and who takes the lock later reads later.
_STARTING = """
SELECT pid FROM pg_locks
WHERE locktype = 'object' AND classid = 'pg_database'::regclass AND mode = 'RowExclusiveLock'
  AND objid = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND granted AND pid <> pg_backend_pid()
"""
_CONFIGURED = """
SELECT value, value::boolean
FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase, unnest(s.setconfig) item,
     substr(item, length(%(name)s) + 2) value
WHERE d.datname = current_database() AND s.setrole = 0
  AND split_part(item, '=', 1) = %(name)s
"""
_OVERRIDES = """
SELECT DISTINCT r.rolname FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole,
     unnest(s.setconfig) item
WHERE split_part(item, '=', 1) = %s AND split_part(item, '=', 2) <> 'on'
ORDER BY 1
"""
# The server shows nothing but their existence to a role that may not read all statistics.
_HIDDEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type IS NULL AND pid <> ALL (%s)
"""
_PREPARED = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"


@dataclass
class ReadOnly:
    """The source between ``begin`` and ``undo``; what is begun stays when it is not undone."""

    config: Config
    stop: threading.Event = field(default_factory=threading.Event)
    _altered: bool = field(default=False, init=False)
    _writers: set[int] | None = field(default=None, init=False)  # sessions not ended yet
    _before: str | None = field(default=None, init=False)
    _was_on: bool = field(default=False, init=False)  # as a cutover before this one left it

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
    def undo_sql(self) -> str | None:
        """What makes a source writable that is read-only; a session there is so by itself."""
        if not self._altered and not self._was_on:
            return None
        writable = None if self._was_on else self._before
        return f"BEGIN READ WRITE; {self._alter(writable)}; COMMIT;"

    def begin(self) -> list[Check]:
        """Let nobody write any more; nothing is changed when that cannot be done."""
        row = self._conn.execute(_CONFIGURED, {"name": SETTING}).fetchone()
        self._before, self._was_on = row if row else (None, False)
        ours = capture_pids(self._conn, self.config.source.slot)
        (hidden,) = self._conn.execute(_HIDDEN, [ours]).fetchone() or (0,)
        if hidden:
            hint = "Let source.admin_url be a superuser, or grant its role pg_monitor and"
            hint += " pg_signal_backend."
            return [fail("read-only", f"{hidden} sessions of others cannot be seen", hint)]
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
        self._altered = True
        checks = [self._end_writers(self._now())]
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
        if not self._altered:
            return
        try:
            self._conn.execute(self._alter(self._before).encode())
        except psycopg.Error as exc:
            raise SourceError(
                "the source is still read-only",
                detail=f"That could not be taken back: {translate(exc).message}.",
                hint=f"At the source run: {self.undo_sql}",
            ) from exc
        self._altered = False
        if self._was_on or self._writers is None:
            return
        # To the end, also when we were told to stop: they could not write for as long as they live.
        _, left = self._end_sessions(
            self._now(), spared=self._writers, grace_s=0.0, stop=threading.Event()
        )
        if left:
            logger.warning("%d sessions could not be ended and stay read-only", len(left))

    # -- sessions of others -------------------------------------------------------------

    def _end_writers(self, began: datetime) -> Check:
        """End the sessions of before; ``undo`` leaves alone those that are there yet."""
        self._writers = self._starting() | self._all(_LIST, began)
        ended, self._writers = self._end_sessions(
            began, spared=set(), grace_s=GRACE_S, stop=self.stop
        )
        if left := len(self._writers):
            hint = "Let source.admin_url be a superuser, or end them yourself."
            return fail("read-only", f"{left} sessions that can write could not be ended", hint)
        return ok("read-only", f"new transactions cannot write; {ended} sessions were ended")

    def _end_sessions(
        self, until: datetime, *, spared: set[int], grace_s: float, stop: threading.Event
    ) -> tuple[int, set[int]]:
        """End sessions that began until then; how many were, and which are left."""
        ended: set[int] = set()
        refused: set[int] = set()
        begin = time.monotonic()
        starting = self._starting()
        while left := (self._all(_LIST, until) | starting) - spared:
            late = time.monotonic() - begin
            if late > grace_s + PATIENCE_S or left <= refused or stop.is_set():
                break
            for pid in left - refused - starting:
                try:
                    if True in self._all(_END, until, pid, late > grace_s):
                        ended.add(pid)
                except psycopg.errors.InsufficientPrivilege:
                    refused.add(pid)
            stop.wait(POLL_S)
            starting &= self._starting()  # without those that began to start since
        return len(ended), left

    def _starting(self) -> set[int]:
        return self._all(_STARTING)

    def _all(self, query: str, *params: object) -> set[int]:
        return {value for (value,) in self._conn.execute(query.encode(), params)}

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
