"""The checksums, keys and columns of a target that is a Postgres database, in one snapshot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import psycopg

from pgtide.errors import (
    ConfigError,
    PgtideError,
    SourceError,
    SourceUnavailable,
    TargetError,
    TargetUnavailable,
)
from pgtide.postgres.connection import SqlConnection, translate
from pgtide.verify.postgres_side import InFlight, PostgresTable, Row, Side, Sums, merged
from pgtide.verify.ranges import HashRanges, KeyRanges, Ranges


@dataclass(frozen=True)
class ReplicaTable:
    """The queries of one table of the target."""

    side: Side | None  # None: there is no such table, which is an empty one
    sessions: Sequence[SqlConnection]  # on the same snapshot
    in_flight: InFlight = ()
    _stopped: threading.Event = field(default_factory=threading.Event)

    def checksums(
        self, ranges: Ranges, numbers: Sequence[int] | None = None, *, outside: bool = False
    ) -> Sums:
        """By range, rows and the sum of their hashes; ``outside``: what the source has no range
        for counts as well."""
        sums: Sums = {}
        if self.side is None:
            return sums
        table, own, condition = self._table, self._own(ranges), ""
        segments = table.segments(numbers, own)
        if numbers is not None and isinstance(own, HashRanges):
            condition = own.within(numbers)
        elif numbers is not None and outside and isinstance(own, KeyRanges):
            segments += [(relation, own.outside) for relation in self.side.relations]
        lock, todo = threading.Lock(), list(reversed(segments))

        def work(session: SqlConnection) -> None:
            while not self._stopped.is_set():
                with lock:
                    if not todo:
                        return
                    relation, segment = todo.pop()
                found = table.checksums(session, relation, segment, own, condition)
                with lock:
                    merged(sums, found)

        with (
            of_target(),
            ThreadPoolExecutor(len(self.sessions), "pgtide-verify-target") as pool,
        ):
            for done in [pool.submit(work, session) for session in self.sessions]:
                done.result()
        return sums

    def rows(self, ranges: Ranges, numbers: Sequence[int]) -> list[Row]:
        """The rows of some ranges."""
        if self.side is None:
            return []
        with of_target():
            return list(self._table.rows(self.sessions[0], self._own(ranges), numbers))

    def column_hashes(self, keys: Mapping[int, tuple[str | None, ...]]) -> dict[int, list[int]]:
        """By hash of the key, a hash of each column."""
        if self.side is None:
            return {}
        with of_target():
            return self._table.column_hashes(self.sessions[0], list(keys.values()))

    def tagged(self, query: Callable[[], Sums]) -> Sums:
        """Run a query so that ``interrupt`` can end it; in a thread of its own."""
        return query()

    def interrupt(self) -> None:
        self._stopped.set()
        for session in self.sessions:
            session.cancel_safe()

    @property
    def _table(self) -> PostgresTable:
        assert self.side is not None
        return PostgresTable(self.side, self.in_flight)

    def _own(self, ranges: Ranges) -> Ranges:
        """The same ranges of the key as it is called here."""
        if not isinstance(ranges, KeyRanges):
            return ranges
        assert self.side is not None
        key = self.side.keys[0]
        # Only where there may be rows without a key: an index knows nothing of the expression.
        name = f"coalesce({key.name}, {ranges.beside})" if key.nullable else key.name
        return replace(ranges, source=name)


@contextmanager
def of_target() -> Iterator[None]:
    """Errors of a Postgres server as errors of the target, which they are."""
    try:
        yield
    except psycopg.Error as exc:
        raise _retold(translate(exc)) from exc
    except (ConfigError, SourceError, SourceUnavailable) as error:
        raise _retold(error) from error


def _retold(error: PgtideError) -> PgtideError:
    if isinstance(error, SourceUnavailable):
        return TargetUnavailable(
            "the target cannot be reached",
            detail=error.message,
            hint="Start the server or correct the pipeline's sink.url.",
        )
    if isinstance(error, ConfigError | SourceError):
        return TargetError(
            f"the target: {error.message}",
            detail=error.detail,
            hint="Look at the role's rights and the pipeline's sink.url.",
        )
    return error
