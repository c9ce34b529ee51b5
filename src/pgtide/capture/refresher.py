"""Refreshes beside a capture session: takes requests one after the other and sees them through.

A thread of its own; the session tells ``windows`` what passes through the stream. A request
that fails, because its table is gone or its condition is no SQL, is marked so and the next one
is taken. Only a defect ends the capture.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from pgtide.capture.pacing import Cancelled, Pacing, Paused, Stopped, is_time
from pgtide.capture.reading import Ending, Reading
from pgtide.capture.refresh_table import POLL_S, TableRefresh, send_watermark
from pgtide.capture.rewrites import Rewrite
from pgtide.capture.seeding import Seeding
from pgtide.capture.windows import Windows
from pgtide.config import Config, TablePatterns
from pgtide.errors import PgtideError, TransientError
from pgtide.log.reader import Log
from pgtide.log.refreshes import Refresh, RefreshStore, Standing
from pgtide.log.storage import Storage
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection, connect
from pgtide.snapshot.incremental import request_everything
from pgtide.snapshot.key_chunks import KeyedTable, Limits
from pgtide.snapshot.key_plan import KeyPlan
from pgtide.snapshot.relations import relations_of

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5
SAVE_INTERVAL_S = 0.5
DEFAULT_RATE = 50_000  # rows a second: what a server hardly notices
READERS = 2  # connections that read at a time, unless configured


class Refresher:
    """Works off the requests of a log while a session lasts."""

    def __init__(self, config: Config, publications: Sequence[str], position: Lsn) -> None:
        self._config = config
        self._publications = tuple(publications)
        self._store = RefreshStore(Storage(config.log.path, config.log.storage))
        self.windows = Windows()
        self.windows.committed(position)
        self._stop = threading.Event()
        self._idle = True  # until it is started
        self._asked = 0  # how often something was asked for since
        self._lock = threading.Lock()  # of these two
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pgtide-refresh", daemon=True)

    def start(self, conn: SqlConnection) -> None:
        """Begin to look for requests; a new log may want everything that is there."""
        log, source = self._config.log, self._config.source
        if source.snapshot == "incremental" and not Log(log.path, log.storage).snapshot().files:
            # Before the first commit, so that a crash in the middle is made good.
            request_everything(conn, TablePatterns(source.tables), self._store)
        self._idle = False
        self._thread.start()

    def close(self) -> None:
        """Stop; what is under way goes on with the next session."""
        self._stop.set()
        self.windows.wake()
        if self._thread.ident is not None:
            self._thread.join()

    def rewritten(self, rewrite: Rewrite) -> None:
        """Rows changed in a way that no event tells: have them read.

        Before the log says so: a crash in between asks for the same again.
        """
        if not rewrite.keyed:
            logger.warning(
                "%s was changed by DDL in a way that only its rows tell (%s), and has no key to "
                "read it by; targets differ until: pgtide snapshot --tables %s",
                rewrite.table, ", ".join(rewrite.reasons), rewrite.table,
            )  # fmt: skip
            return
        # Where keys are others now, the rows of the old ones are gone.
        replaces = rewrite.rekeyed
        self._store.add(
            Refresh(rewrite.table, rewrite.id, replace=replaces, oid=rewrite.oid, reason="ddl")
        )
        with self._lock:
            self._asked += 1
            self._idle = False

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done, as far as was looked; raises what went wrong."""
        if self._error is not None:
            raise self._error
        return self._idle

    def _run(self) -> None:
        try:
            self._store.forget_old()
            while not self._stop.is_set():
                asked = self._asked
                request = self._next()
                with self._lock:  # somebody may have asked for more since we looked
                    self._idle = request is None and asked == self._asked
                if request is None:
                    self._stop.wait(LOOK_INTERVAL_S)
                else:
                    self._serve(request)
        except BaseException as error:
            self._error = error

    def _next(self) -> Refresh | None:
        """The oldest request that may go on."""
        in_time = is_time(self._config.history.window)
        for request in self._store.requests():
            standing = self._store.standing(request.id)
            wanted = self._store.control(request.id)
            if not self._store.is_open(request.id):
                continue
            if wanted == "cancel":
                self._store.save(request.id, replace(standing, state="cancelled"))
            elif wanted == "pause":
                if standing.state != "paused":
                    self._store.save(request.id, replace(standing, state="paused"))
            elif in_time:
                return request
        return None

    def _serve(self, request: Refresh) -> None:
        service = _Service(self._config, self._publications, self._store, request, self)
        try:
            service.run()
        except Stopped:
            pass  # the next session goes on
        except Paused:
            self._store.save(request.id, replace(service.standing, state="paused"))
        except Cancelled:
            self._store.save(request.id, replace(service.standing, state="cancelled"))
        except TransientError as error:
            logger.warning("refresh of %s: %s; trying again", request.table, error.message)
            waiting = replace(service.standing, state="waiting", message=error.message)
            self._store.save(request.id, waiting)
            self._stop.wait(LOOK_INTERVAL_S)
        except PgtideError as error:
            said = " ".join(filter(None, [f"{error.message}.", error.detail, error.hint]))
            logger.error("refresh of %s failed: %s", request.table, said)
            self._store.save(request.id, replace(service.standing, state="failed", message=said))

    @property
    def stopping(self) -> threading.Event:
        """Set when the session ends."""
        return self._stop


class _Service:
    """One request, from where it stands to its end."""

    def __init__(
        self,
        config: Config,
        publications: tuple[str, ...],
        store: RefreshStore,
        request: Refresh,
        refresher: Refresher,
    ) -> None:
        self._config = config
        self._publications = publications
        self._store = store
        self._request = request
        self._windows = refresher.windows
        self._saved_at = 0.0
        rates = (request.max_rate, config.history.max_rate, DEFAULT_RATE)
        rate = next(each for each in rates if each is not None)
        self._pace = Pacing(store, request.id, refresher.stopping, rate, config.history.window)
        self.standing = replace(store.standing(request.id), state="running", message="")

    def run(self) -> None:
        """Refresh each relation, then end it with what replacing takes."""
        url = self._config.source.url.reveal()
        with connect(url, application_name="pgtide refresh") as conn:
            conn.execute("SET synchronous_commit = local")  # a standby need not have watermarks
            patterns = TablePatterns(self._config.source.tables)
            request = self._request
            relations = relations_of(conn, request.table, patterns, request.oid)
            done = relations.index(int(self._place[0])) if self._began(relations) else 0
            for oid in relations[done:]:
                self._relation(oid)
            ending = Ending(self._request, self.standing.since or Lsn(0), tuple(relations))
            token = self._windows.expect(ending)
            send_watermark(conn, token)
            while not self._windows.wait(lambda: self._ended(ending), POLL_S):
                self._pace.check()
        self._save(replace(self.standing, state="done", until=ending.lsn, place=None))

    @property
    def _place(self) -> tuple[str, ...]:
        return self.standing.place or ()

    def _began(self, relations: Sequence[int]) -> bool:
        return bool(self._place) and int(self._place[0]) in relations

    def _ended(self, ending: Ending) -> bool:
        return ending.lsn is not None and self._windows.position >= ending.lsn

    def _relation(self, oid: int) -> None:
        place = self._place[1:] if self._place and int(self._place[0]) == oid else ()
        request, history = self._request, self._config.history
        limits = Limits(request.where, request.low, request.high)
        log = self._config.log
        with ExitStack() as stack:
            tables = []
            for _ in range(1 + (history.parallelism or READERS)):
                table = KeyedTable(
                    self._config.source.url.reveal(), self._publications, oid, limits
                )
                stack.callback(table.close)
                tables.append(table)
            plan = KeyPlan(
                tables[0],
                request.chunk_rows or history.chunk_rows,
                keys=request.keys,
                place=place or None,
            )

            def on_done(reading: Reading) -> None:
                self._progressed(reading, oid, plan)

            table_refresh = TableRefresh(
                request,
                tables[1:],
                plan,
                self._windows,
                Seeding(self._windows, log.path, log.storage),
                self._pace,
                on_done,
            )
            since = table_refresh.begin(self.standing.since)
            total = self.standing.total
            if not place and request.whole:
                total = (total or 0) + (tables[0].estimate() or 0)
            self._save(replace(self.standing, since=since, total=total, place=(str(oid), *place)))
            table_refresh.run()

    def _progressed(self, reading: Reading, oid: int, plan: KeyPlan) -> None:
        self.standing = replace(
            self.standing,
            rows=self.standing.rows + reading.rows,
            dropped=self.standing.dropped + reading.dropped,
            chunks=self.standing.chunks + 1,
            place=(str(oid), *(plan.place or ())),
        )
        if time.monotonic() - self._saved_at > SAVE_INTERVAL_S:
            self._save(self.standing)

    def _save(self, standing: Standing) -> None:
        self.standing = standing
        self._store.save(self._request.id, standing)
        self._saved_at = time.monotonic()
