"""Refreshes beside a capture session: takes requests one after the other and sees them through.

A thread of its own; the session tells ``windows`` what passes through the stream. A request
that fails, because its table is gone or its condition is no SQL, is marked so and the next one
is taken. Only a defect ends the capture.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from pgtide.capture.pacing import Cancelled, Paused, Stopped, is_time
from pgtide.capture.refresh_service import RefreshService
from pgtide.capture.rewrites import Rewrite
from pgtide.capture.windows import Windows
from pgtide.config import Config, TablePatterns
from pgtide.errors import PgtideError, TransientError
from pgtide.log.reader import Log
from pgtide.log.refreshes import Refresh, RefreshStore
from pgtide.log.storage import Storage
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection
from pgtide.snapshot.incremental import request_everything

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5


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
        self._store.add(
            Refresh(
                rewrite.table,
                rewrite.id,
                replace=rewrite.replaces,
                oid=rewrite.oid,
                reason="ddl",
            )
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
        service = RefreshService(
            self._config, self._publications, self._store, request, self.windows, self._stop
        )
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
