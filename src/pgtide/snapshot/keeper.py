"""The session that keeps a snapshot and its tables as they are until everything is read.

    lock tables ──▶ temporary slot, exported snapshot at C ──▶ import, re-export ──▶ hold

The locks come first: a table that is rewritten after C (ALTER TABLE … TYPE, TRUNCATE) looks
empty to a snapshot from before. ACCESS SHARE stops only that, no reader and no writer. The
slot is needed for one thing, the point C in the WAL that the snapshot belongs to: what commits
before it is in the snapshot, everything else is in the stream behind it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import psycopg
from psycopg import sql

from pgtide.capture.faults import fault
from pgtide.errors import SourceExhausted, SourceUnavailable
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection, connect, no_timeouts, translate
from pgtide.postgres.slot import CreatedSlot, SlotCreation
from pgtide.snapshot.tables import Selection

logger = logging.getLogger(__name__)

APPLICATION = "pgtide snapshot"
LOCK_TIMEOUT = "30s"
LOCKS_AT_ONCE = 500  # tables in one LOCK statement
TRIES = 10  # while tables are created and dropped under our hands
POLL_S = 0.25
SAY_AFTER_S = 5.0  # before it is said what the slot waits for

_NAMES = """
SELECT c.oid::bigint, n.nspname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::oid[])
"""

Select = Callable[[SqlConnection], Selection]


@dataclass(frozen=True, slots=True)
class Held:
    """A snapshot that others may import, and what it shows."""

    point: Lsn  # C
    snapshot: str
    taken_at: datetime  # by the server's clock
    selection: Selection


class Keeper:
    """Holds locks and snapshot from entering to leaving."""

    def __init__(self, url: str, select: Select, stop: threading.Event) -> None:
        self._url = url
        self._select = select
        self._stop = stop
        self.conn: SqlConnection = connect(url, application_name=APPLICATION)
        self.held: Held | None = None

    def __enter__(self) -> Self:
        try:
            for _ in range(TRIES):
                self.held = self._try()
                if self.held is not None or self._stop.is_set():
                    return self
        except psycopg.errors.LockNotAvailable as exc:
            self.conn.close()
            raise not_free() from exc
        except psycopg.Error as exc:
            self.conn.close()
            raise translate(exc) from exc
        except BaseException:
            self.conn.close()
            raise
        self.conn.close()
        raise SourceExhausted(
            "tables are created and dropped all the time",
            detail=f"In {TRIES} attempts the list of tables changed before all were locked.",
            hint="Run pgtide snapshot again when that is over, or leave them out: source.tables",
        )

    def __exit__(self, *_: object) -> None:
        self.conn.close()

    def check(self) -> None:
        """Raise if the locks were not held all the time, or tables did not keep their names.

        A lock on a table does not keep its schema from being renamed, and tables are read by name.
        """
        assert self.held is not None, "nothing is read before"
        heaps = self.held.selection.heaps
        try:
            self.conn.execute("SELECT 1")
            # In another session: what this one sees of the catalog is its snapshot's.
            with connect(self._url, application_name=APPLICATION) as conn:
                named = {oid: names for oid, *names in conn.execute(_NAMES, [list(heaps)])}
        except psycopg.Error as exc:
            raise translate(exc) from exc
        if any(named.get(oid) != [heap.schema, heap.table] for oid, heap in heaps.items()):
            raise SourceUnavailable(
                "a schema was renamed while its tables were read", hint="Run pgtide snapshot again."
            )

    def _try(self) -> Held | None:
        """One attempt; None if the tables are others than those that were locked."""
        no_timeouts(self.conn, lock_timeout=LOCK_TIMEOUT)
        try:
            seen = self._select(self.conn)  # the server locks tables to tell what it publishes
            # LOCK takes no snapshot, so one can still be imported.
            self.conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            self._lock(seen)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            self.conn.execute("ROLLBACK")
            return None  # one is gone
        fault("snapshot_locked")
        held = self._import(seen)
        if held is None:
            self.conn.execute("ROLLBACK")
            return None
        fault("snapshot_exported")
        return held

    def _lock(self, selection: Selection) -> None:
        heaps = list(selection.heaps.values())
        for first in range(0, len(heaps), LOCKS_AT_ONCE):
            names = sql.SQL(", ").join(
                sql.SQL("ONLY {}").format(sql.Identifier(heap.schema, heap.table))
                for heap in heaps[first : first + LOCKS_AT_ONCE]
            )
            self.conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))

    def _import(self, seen: Selection) -> Held | None:
        """Take over the snapshot of a new slot; None if it shows other tables, or on a stop."""
        creation = SlotCreation(
            self._url,
            f"pgtide_snapshot_{self.conn.info.backend_pid}",
            version=self.conn.info.server_version,
            temporary=True,
            application_name=APPLICATION,
        )
        try:
            created = self._create(creation)
            if created is None:
                return None
            name = sql.Literal(created.snapshot)
            self.conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(name))
        finally:
            creation.__exit__()
        selection = self._select(self.conn)
        if selection.heaps != seen.heaps:
            return None
        row = self.conn.execute("SELECT pg_export_snapshot(), clock_timestamp()").fetchone()
        assert row is not None
        return Held(created.consistent_point, row[0], row[1], selection)

    def _create(self, creation: SlotCreation) -> CreatedSlot | None:
        """Make the slot; the server waits for the end of every transaction that is open."""
        outcome: list[Any] = []

        def create() -> None:
            try:
                outcome.append(creation.__enter__())
            except BaseException as exc:
                outcome.append(exc)

        # In a thread: a signal would not be heard while libpq waits.
        thread = threading.Thread(target=create, name="pgtide-slot", daemon=True)
        thread.start()
        try:
            say_at = time.monotonic() + SAY_AFTER_S
            while thread.is_alive() and not self._stop.is_set():
                thread.join(POLL_S)
                if time.monotonic() > say_at:
                    logger.info("waiting for transactions that are open at the source to end")
                    say_at = math.inf
        finally:
            if thread.is_alive():
                creation.cancel()
                thread.join()
        if self._stop.is_set():
            return None
        (created,) = outcome
        if isinstance(created, BaseException):
            raise created
        assert isinstance(created, CreatedSlot)
        return created


def not_free() -> SourceExhausted:
    """The error for a table that someone keeps locked."""
    return SourceExhausted(
        f"a table was not free within {LOCK_TIMEOUT}",
        detail="Someone holds an exclusive lock on it: ALTER TABLE, VACUUM FULL, TRUNCATE or "
        "LOCK in an open transaction.",
        hint="Run pgtide snapshot again when that is over; "
        "SELECT * FROM pg_locks WHERE mode = 'AccessExclusiveLock' shows it.",
    )
