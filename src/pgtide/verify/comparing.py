"""Comparing one table: checksums of both sides at once, then only what differs, down to keys."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

from pgtide.errors import Interrupted
from pgtide.postgres.connection import SqlConnection
from pgtide.spark.sql_text import quoted
from pgtide.verify.postgres_side import PostgresTable, Row, Sums, merged
from pgtide.verify.ranges import HashRanges, KeyRanges, Ranges, sampled
from pgtide.verify.relations import Relation
from pgtide.verify.report import LISTED, REPAIRED, Difference, TableReport, listed
from pgtide.verify.targets import Plan, TargetSide

AT_ONCE = 200_000  # rows that are compared one by one at a time
LOOK_S = 1.0  # between two looks whether to go on


@dataclass
class Pace:
    """Lets so many rows a second through; None: all."""

    rate: float | None = None
    check: Callable[[], None] | None = None  # raises when the source is to be left alone
    stop: threading.Event = field(default_factory=threading.Event)
    _due: float = 0.0

    def passed(self, rows: int) -> None:
        if self.rate is not None:
            self._due = max(self._due, time.monotonic()) + rows / self.rate
            self.stop.wait(max(0.0, self._due - time.monotonic()))
        self.look()

    def look(self) -> None:
        """Raise when the source is to be left alone, or all is to end."""
        if self.check is not None:
            self.check()
        if self.stop.is_set():
            raise Interrupted("the verification was stopped")


@dataclass(frozen=True)
class Part:
    """Some ranges of an integer key: a large table can be compared in several snapshots."""

    rows: int  # about so many
    start: int | None = None  # the first range, None for the first part
    shift: int | None = None  # that of the first part: all are cut alike


@dataclass(frozen=True)
class Comparison:
    """One table, both sides pinned."""

    plan: Plan
    source: PostgresTable
    target: TargetSide
    sessions: Sequence[SqlConnection]  # on the same snapshot
    sample: float | None = None
    seed: str = ""
    part: Part | None = None
    pace: Pace = field(default_factory=Pace)
    on_progress: Callable[[int, int], None] | None = None  # segments that are done, of how many

    def fill(self, report: TableReport) -> Part | None:
        """Compare, and add what was found to the report; the part that is to come next."""
        ranges = self._ranges()
        chosen, following, outside = None, None, True
        if self.sample is not None:
            chosen = sampled(ranges.numbers, self.sample, self.seed)
        elif self.part is not None and isinstance(ranges, KeyRanges):
            chosen, following = self._parted(ranges, self.part)
            outside = self.part.start is None
        ours, theirs = self._checksums(ranges, chosen, outside=outside)
        report.rows += sum(rows for rows, _ in ours.values())
        report.target_rows += sum(rows for rows, _ in theirs.values())
        differing = _differing(ours, theirs)
        if differing and self._scattered(ranges, differing, ours, theirs):
            ranges = HashRanges.over("key", report.rows)
            ours, theirs = self._checksums(ranges, None, outside=True)
            differing = _differing(ours, theirs)
        while differing and (finer := self._finer(ranges, differing, ours, theirs)):
            ours, theirs = self._again(ranges, sorted(differing), finer)
            ranges, differing = finer, _differing(ours, theirs)
        if differing:
            before = report.differing
            self._narrow(report, ranges, _groups(differing, ours, theirs))
            assert report.differing > before, "checksums differ, so some rows do"
        return following

    def _parted(self, ranges: KeyRanges, part: Part) -> tuple[list[int], Part | None]:
        """The ranges of a part, and the next part."""
        rows = self.plan.source.rows
        count = max(1, len(ranges.numbers) * part.rows // max(rows, 1))
        first = ranges.numbers.start if part.start is None else part.start
        last = min(ranges.numbers.stop, first + count)
        ended = last >= ranges.numbers.stop
        following = None if ended else replace(part, start=last, shift=ranges.shift)
        return list(range(first, last)), following

    # -- checksums ------------------------------------------------------------------------

    def _ranges(self) -> Ranges:
        plan = self.plan
        rows = plan.source.rows
        if plan.numbered:
            bounds = self.source.key_bounds(self.sessions[0])
            if bounds is not None:
                names = plan.source.keys[0].name, quoted(plan.keys[0].target)
                cut = KeyRanges.over(*names, *bounds, rows)
                known = self.part.shift if self.part is not None else None
                return cut if known is None else replace(cut, shift=known)
        return HashRanges.over("key" if self.sample is not None and plan.keys else "row", rows)

    def _checksums(
        self, ranges: Ranges, chosen: list[int] | None, *, outside: bool
    ) -> tuple[Sums, Sums]:
        condition = ""
        if chosen is not None and isinstance(ranges, HashRanges):
            condition = ranges.within(chosen)
        segments = self.source.segments(chosen, ranges)
        return self._both(
            segments,
            ranges,
            condition,
            lambda: self.target.checksums(ranges, chosen, outside=outside),
        )

    def _again(self, ranges: Ranges, numbers: list[int], finer: Ranges) -> tuple[Sums, Sums]:
        """The checksums of some ranges, cut finer."""
        if isinstance(ranges, HashRanges):
            segments, condition = self.source.segments(None, ranges), ranges.within(numbers)
        else:
            segments, condition = self.source.segments(numbers, ranges), ""
        inside = set(numbers)
        ours, theirs = self._both(segments, finer, condition, lambda: self.target.checksums(finer))
        return ours, {n: s for n, s in theirs.items() if _coarse(n, ranges, finer) in inside}

    def _both(
        self,
        segments: list[tuple[Relation, str]],
        ranges: Ranges,
        condition: str,
        target: Callable[[], Sums],
    ) -> tuple[Sums, Sums]:
        """Both sides at the same time, and given up at once when somebody needs the table."""
        ours: Sums = {}
        lock, stopped = threading.Lock(), threading.Event()
        todo = list(reversed(segments))

        def work(session: SqlConnection) -> None:
            while not stopped.is_set():
                with lock:
                    if not todo:
                        return
                    relation, segment = todo.pop()
                found = self.source.checksums(session, relation, segment, ranges, condition)
                with lock:
                    merged(ours, found)
                    done = len(segments) - len(todo)
                if self.on_progress is not None:
                    self.on_progress(done, len(segments))
                self.pace.passed(sum(count for _, count, _ in found))

        threads = len(self.sessions) + 1
        with ThreadPoolExecutor(threads, thread_name_prefix="pgtide-verify") as pool:
            theirs = pool.submit(self.target.tagged, target)
            running: set[Future[Any]] = {theirs, *(pool.submit(work, s) for s in self.sessions)}
            try:
                while running:
                    done, running = wait(running, LOOK_S, FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    self.pace.look()
            except BaseException:
                stopped.set()
                for session in self.sessions:
                    session.cancel_safe()
                while not theirs.done():
                    self.target.interrupt()
                    wait([theirs], LOOK_S)
                raise
        return ours, theirs.result()

    # -- narrowing ------------------------------------------------------------------------

    def _finer(
        self, ranges: Ranges, differing: set[int], ours: Sums, theirs: Sums
    ) -> Ranges | None:
        """A finer cut, while a range is too large to be compared row by row."""
        largest = max(_size(number, ours, theirs) for number in differing)
        return ranges.finer if largest > AT_ONCE else None

    def _scattered(self, ranges: Ranges, differing: set[int], ours: Sums, theirs: Sums) -> bool:
        """Whether a changed row may be looked for in two groups of ranges.

        Cut by a hash of the row, it is in one range here and in another one there.
        """
        keyed = bool(self.plan.keys) and ranges.hashed == "row"
        return keyed and sum(_size(n, ours, theirs) for n in differing) > AT_ONCE

    def _narrow(self, report: TableReport, ranges: Ranges, groups: Iterable[list[int]]) -> None:
        found: list[Difference] = []
        changed: dict[int, Difference] = {}
        for group in groups:
            self.pace.look()
            ours = list(self.source.rows(self.sessions[0], ranges, group))
            theirs = self.target.rows(ranges, group)
            if not self.plan.keys:
                _count_rows(report, ours, theirs)
                continue
            for key_hash, one in _match(ours, theirs):
                setattr(report, one.kind, getattr(report, one.kind) + 1)
                named = tuple(part for part in one.key if part is not None)
                if len(report.keys) <= REPAIRED and len(named) == len(one.key):
                    report.keys.append(named)
                if one.kind == "different":
                    if len(changed) < LISTED:
                        changed[key_hash] = one
                elif len(found) < LISTED:
                    found.append(one)
        report.differences = listed([*report.differences, *found, *self._with_columns(changed)])

    def _with_columns(self, changed: dict[int, Difference]) -> list[Difference]:
        """Which columns of the changed rows differ."""
        if not changed:
            return []
        keys = [one.key for one in changed.values()]
        ours = self.source.column_hashes(self.sessions[0], keys)
        theirs = self.target.column_hashes({hash_: one.key for hash_, one in changed.items()})
        names = [column.name for column in self.plan.columns]
        return [
            replace(one, columns=_differing_columns(names, ours.get(h, []), theirs.get(h, [])))
            for h, one in changed.items()
        ]


def _size(number: int, ours: Sums, theirs: Sums) -> int:
    return max(ours.get(number, (0, 0))[0], theirs.get(number, (0, 0))[0])


def _differing(ours: Sums, theirs: Sums) -> set[int]:
    return {n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n)}


def _groups(differing: set[int], ours: Sums, theirs: Sums) -> Iterable[list[int]]:
    """Ranges that are compared row by row together."""
    group: list[int] = []
    rows = 0
    for number in sorted(differing):
        size = _size(number, ours, theirs)
        if group and rows + size > AT_ONCE:
            yield group
            group, rows = [], 0
        group.append(number)
        rows += size
    yield group


def _coarse(number: int, ranges: Ranges, finer: Ranges) -> int:
    """The range that a range of a finer cut is in."""
    if isinstance(ranges, KeyRanges) and isinstance(finer, KeyRanges):
        return number >> (ranges.shift - finer.shift)
    assert isinstance(ranges, HashRanges)
    assert isinstance(finer, HashRanges)
    return number >> (finer.bits - ranges.bits)


def _match(ours: list[Row], theirs: list[Row]) -> Iterable[tuple[int, Difference]]:
    """What differs between rows of the same ranges, with the hash of its key."""
    there: dict[int, list[Row]] = defaultdict(list)
    for row in theirs:
        there[row.key_hash].append(row)
    for row in ours:
        twins = there.pop(row.key_hash, [])
        if not twins:
            yield row.key_hash, Difference("missing", row.key)
            continue
        if all(twin.row_hash != row.row_hash for twin in twins):
            yield row.key_hash, Difference("different", row.key)
        for _ in twins[1:]:  # the mirror has the row more than once
            yield row.key_hash, Difference("extra", row.key)
    for key_hash, rows in there.items():
        for row in rows:
            yield key_hash, Difference("extra", row.key)


def _count_rows(report: TableReport, ours: list[Row], theirs: list[Row]) -> None:
    """Rows without a key: how often each is there."""
    here, there = (Counter(row.row_hash for row in rows) for rows in (ours, theirs))
    report.missing += (here - there).total()
    report.extra += (there - here).total()


def _differing_columns(names: list[str], ours: list[int], theirs: list[int]) -> tuple[str, ...]:
    pairs = zip(names, ours, theirs, strict=False)
    return tuple(name for name, one, other in pairs if one != other)
