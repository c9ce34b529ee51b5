"""One refresh that was asked for, from where it stands to its end, relation by relation.

How far it has come is saved behind the log: what was not saved is read once more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from pgtide.capture.pacing import Pacing
from pgtide.capture.reading import Ending, Reading
from pgtide.capture.refresh_table import POLL_S, TableRefresh, send_watermark
from pgtide.capture.seeding import Seeding
from pgtide.capture.windows import Windows
from pgtide.config import Config, TablePatterns
from pgtide.errors import SourceError, TableGone
from pgtide.log.refreshes import Refresh, RefreshStore, Standing
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection, connect
from pgtide.snapshot.key_chunks import KeyChanged, KeyedTable, Limits
from pgtide.snapshot.key_plan import KeyPlan
from pgtide.snapshot.relations import relations_of, table_named

SAVE_INTERVAL_S = 0.5
DEFAULT_RATE = 50_000  # rows a second: what a server hardly notices
READERS = 2  # connections that read at a time, unless configured
_BY_PEOPLE = ("asked", "repair")  # who are told; of the others the log says itself what is gone


class RefreshService:
    """One request, from where it stands to its end."""

    def __init__(
        self,
        config: Config,
        publications: tuple[str, ...],
        store: RefreshStore,
        request: Refresh,
        windows: Windows,
        stop: threading.Event,
    ) -> None:
        self._config = config
        self._publications = publications
        self._store = store
        self._request = request
        self._windows = windows
        self._saved_at = 0.0
        rates = (request.max_rate, config.history.max_rate, DEFAULT_RATE)
        rate = next(each for each in rates if each is not None)
        self._pace = Pacing(store, request.id, stop, rate, config.history.window)
        self.standing = replace(store.standing(request.id), state="running", message="")

    def run(self) -> None:
        """Refresh each relation, then end it with what replacing takes."""
        url = self._config.source.url.reveal()
        with connect(url, application_name="pgtide refresh") as conn:
            conn.execute("SET synchronous_commit = local")  # a standby need not have watermarks
            relations = self._relations(conn)
            done = relations.index(int(self._place[0])) if self._began(relations) else 0
            gone = set()
            for oid in relations[done:]:
                try:
                    self._relation(oid)
                except TableGone:
                    self._relations(conn)  # raises if that was not a partition of it
                    gone.add(oid)
            left = tuple(oid for oid in relations if oid not in gone)
            ending = Ending(self._request, self.standing.since or Lsn(0), left)
            token = self._windows.expect(ending)
            send_watermark(conn, token)
            while not self._windows.wait(lambda: self._ended(ending), POLL_S):
                self._pace.check()
        self._save(replace(self.standing, state="done", until=ending.lsn, place=None))

    def _relations(self, conn: SqlConnection) -> list[int]:
        request, patterns = self._request, TablePatterns(self._config.source.tables)
        oid = request.oid or table_named(conn, request.table, patterns)
        relations = relations_of(conn, oid, patterns, self._publications)
        if not relations and request.reason in _BY_PEOPLE:
            raise TableGone(
                f"there is no table {request.table} any more",
                detail="It was dropped, or renamed to what is not captured, since.",
                hint=f"pgtide refresh --cancel {request.id}",
            )
        return relations

    @property
    def _place(self) -> tuple[str, ...]:
        return self.standing.place or ()

    def _began(self, relations: Sequence[int]) -> bool:
        return bool(self._place) and int(self._place[0]) in relations

    def _ended(self, ending: Ending) -> bool:
        return ending.lsn is not None and self._windows.position >= ending.lsn

    def _relation(self, oid: int) -> None:
        """Read a relation; from its beginning when it gets another key meanwhile."""
        while True:
            try:
                return self._read_by_key(oid)
            except KeyChanged:
                request = self._request
                if request.keys is not None or request.low is not None or request.high is not None:
                    raise SourceError(
                        f"{request.table} has another key by now",
                        detail="What was asked for is told by the key that it had before.",
                        hint=f"Ask again, by its key of now: pgtide refresh {request.table}",
                    ) from None
                self._save(replace(self.standing, place=(str(oid),), key=None))

    def _read_by_key(self, oid: int) -> None:
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
            key = tables[0].identity()
            if place and self.standing.key not in (None, key):
                raise KeyChanged
            for table in tables:
                table.key = key
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
            begun = (str(oid), *place)
            self._save(replace(self.standing, since=since, total=total, place=begun, key=key))
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
