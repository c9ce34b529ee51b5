"""Compaction: many small files of a closed range of positions become few larger ones.

Files whose ranges overlap are one unit, the output of one earlier compaction for
example. Units of a day, in order, are merged in tiers like those of a log-structured
merge tree: when enough units of one tier have gathered, they and the smaller ones between
them become one unit of a higher tier, until a unit is full. Each row is therefore
rewritten a handful of times in its life, and the number of files stays small.

The output is sorted by schema, table, lsn, seq and cut where a table ends, so that reading
one table skips the rest. A large table has row groups and files to itself; small ones share
them, or else a run over thousands of tables would be all footer.

A commit adds the new files and removes the old ones with ``dataChange=false``: streams and
followers pass over it, and an append at the same time does not conflict. The maintenance
counter (``source.maintenance_app_id``) keeps two compactions from doubling rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable

from pgtide.log.compacted import write_files
from pgtide.log.files import file_missing
from pgtide.log.maintenance_commits import commit_maintenance, remove_action
from pgtide.log.order import (
    Keys,
    Piece,
    TableName,
    clusters,
    count_rows,
    in_memory,
    open_pieces,
    read_sorted,
)
from pgtide.log.sizes import cut, row_sizes
from pgtide.log.snapshot import DataFile, Snapshot, newest_snapshot, read_snapshot
from pgtide.log.storage import Storage
from pgtide.position import Position

RUN_ROWS = 500_000  # their sort keys are in memory: a million cost capture 80 MB more
RUN_BYTES = 64 * 1024 * 1024  # compressed
RUN_MEMORY = 256 * 1024 * 1024  # of all rows in memory: they are read by windows, several times
FULL = 0.5  # a unit this close to a run's limits is left alone
TIERS = 4  # below the full ones, each 8 times the one before
TIER_UNITS = (16, 6, 6, 6, 6)  # units of each tier that are worth a merge
LARGE_TABLE_ROWS = 4_096  # from here on a table has row groups to itself
ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 16 * 1024 * 1024  # in memory


@dataclass(frozen=True, slots=True)
class Unit:
    """Files of one day that overlap one another and nothing else."""

    files: tuple[DataFile, ...]
    memory: int = 0  # bytes that the rows of those files take whose size is known

    @property
    def low(self) -> Position:
        return min(file.low for file in self.files)

    @property
    def high(self) -> Position:
        return max(file.high for file in self.files)

    @property
    def weight(self) -> float:
        """How much of a run's limits the unit takes."""
        rows, size = sum(f.rows for f in self.files), sum(f.size for f in self.files)
        return max(rows / RUN_ROWS, size / RUN_BYTES, self.memory / RUN_MEMORY)

    @property
    def tier(self) -> int:
        """0 for the smallest units, up to TIERS; full ones are in none (TIERS + 1)."""
        if self.weight >= FULL:
            return TIERS + 1
        return sum(self.weight >= 8.0**-power for power in range(1, TIERS + 1))


def plan(
    snapshot: Snapshot,
    before: Position,
    *,
    everything: bool = False,
    memory: Mapping[str, int] | None = None,
) -> list[Unit] | None:
    """The next run to merge, None when there is nothing worth it.

    No file that reaches ``before`` is touched. ``everything`` merges whatever fits together;
    otherwise that is done for days that are over, and the newest day is merged by tiers.
    ``memory`` says by path how much the rows of a file take, as far as that is known.
    """
    known = memory or {}
    days: dict[date, list[DataFile]] = {}
    for file in snapshot.files:
        days.setdefault(file.day, []).append(file)
    # By position: the source's clock may have been wrong, and its future is never over.
    newest = max(snapshot.files, key=lambda file: file.high, default=None)
    for day in sorted(days):
        units = [
            Unit(tuple(cluster), sum(known.get(file.path, 0) for file in cluster))
            for cluster in clusters(days[day])
        ]
        closed = [unit for unit in units if unit.high < before]
        over = len(closed) == len(units) and newest is not None and day != newest.day
        run = _fitting(closed) if everything or over else _by_tier(closed)
        if run:
            return run
    return None


def compact(
    changes: Storage,
    table: DeltaTable,
    before: Position,
    *,
    everything: bool = False,
    memory: dict[str, int] | None = None,
) -> int:
    """Merge the next run, in one commit; how many files it replaced, 0 when there was no run.

    ``table`` is a handle of the caller's own, at the newest version. ``memory`` is for the caller
    to keep: what the rows of each file take in memory need not be found out anew.
    """
    snapshot = read_snapshot(table)
    try:
        found = _measured_plan(
            changes, snapshot, before, everything, {} if memory is None else memory
        )
        if found is None:
            return 0
        old, pieces = found
        logged_at_ms = max(file.logged_at_ms for file in old)
        added = list(write_files(changes, old[0].day, logged_at_ms, _row_groups(pieces)))
    except FileNotFoundError as exc:
        if newest_snapshot(changes).maintenance == snapshot.maintenance:
            raise file_missing(exc) from exc
        return 0  # it was replaced or dropped meanwhile
    removed = [remove_action(file) for file in old]
    # A lost race leaves our files as orphans; the winner has merged the same ones.
    return len(old) if commit_maintenance(changes, table, snapshot, [*added, *removed]) else 0


def _measured_plan(
    changes: Storage, snapshot: Snapshot, before: Position, everything: bool, memory: dict[str, int]
) -> tuple[list[DataFile], list[Piece]] | None:
    """The files of the next run and their row groups.

    The Delta log knows compressed sizes only; the footers of files that might be merged tell
    the others.
    """
    for path in memory.keys() - {file.path for file in snapshot.files}:
        del memory[path]
    opened: dict[str, list[Piece]] = {}
    while run := plan(snapshot, before, everything=everything, memory=memory):
        old = [file for unit in run for file in unit.files]
        unknown = [file for file in old if file.path not in memory]
        if not unknown:
            pieces = [opened.get(file.path) or open_pieces(changes, file) for file in old]
            return old, list(itertools.chain.from_iterable(pieces))
        for file in unknown:
            opened[file.path] = open_pieces(changes, file)
            memory[file.path] = sum(piece.bytes for piece in opened[file.path])
    return None


def _fitting(units: Sequence[Unit]) -> list[Unit] | None:
    """The first neighbours that together stay within a run's limits."""
    run: list[Unit] = []
    weight = 0.0
    for unit in units:
        if run and weight + unit.weight > 1:
            if len(run) > 1:
                return run
            run, weight = [], 0.0
        run.append(unit)
        weight += unit.weight
    return run if len(run) > 1 else None


def _by_tier(units: Sequence[Unit]) -> list[Unit] | None:
    for tier in range(TIERS + 1):
        for stretch in _stretches(units, tier):
            if sum(unit.tier == tier for unit in stretch) >= TIER_UNITS[tier]:
                run = _fitting(stretch)
                if run:
                    return run
    return None


def _stretches(units: Sequence[Unit], tier: int) -> Iterator[list[Unit]]:
    """The longest stretches of neighbours that are of this tier or below."""
    for small, stretch in itertools.groupby(units, key=lambda unit: unit.tier <= tier):
        if small:
            yield list(stretch)


def _row_groups(pieces: Sequence[Piece]) -> Iterator[tuple[bool, pa.Table]]:
    """The rows as they will lie in row groups; True where a table begins."""
    pieces = in_memory(pieces)
    counts = count_rows(pieces)
    names = sorted(counts, key=lambda name: (name[0] or "", name[1] or ""))
    ranks = {name: rank for rank, name in enumerate(names)}
    large = np.array([counts[name] >= LARGE_TABLE_ROWS for name in names])

    def keys(piece: Piece) -> Keys:
        rows = piece.read(["schema", "table", "lsn", "seq"])
        return [_name_ranks(rows, ranks), *(rows.column(c).to_numpy() for c in ("lsn", "seq"))]

    previous = -1
    for window in read_sorted(pieces, keys):
        for rank, rows in _by_table(window, _name_ranks(window, ranks), large):
            for begin, end in cut(row_sizes(rows), ROW_GROUP_ROWS, ROW_GROUP_BYTES):
                yield rank != previous, rows.slice(begin, end - begin)
                previous = rank


def _by_table(
    rows: pa.Table, ranks: npt.NDArray[np.int64], large: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, pa.Table]]:
    """Cut sorted rows where a large table begins or ends; small ones stay together."""
    left, right = ranks[:-1], ranks[1:]
    cuts = np.flatnonzero((left != right) & (large[left] | large[right])) + 1
    for begin, end in itertools.pairwise([0, *cuts.tolist(), rows.num_rows]):
        yield int(ranks[begin]), rows.slice(begin, end - begin)


def _name_ranks(rows: pa.Table, ranks: dict[TableName, int]) -> npt.NDArray[np.int64]:
    """Each row's table as its place in the sorted list of tables."""
    schemas, tables = (
        rows.column(name).combine_chunks().dictionary_encode("encode")
        for name in ("schema", "table")
    )
    lookup: npt.NDArray[np.int64] = np.array(
        [
            [ranks.get((schema, table), -1) for table in tables.dictionary.to_pylist()]
            for schema in schemas.dictionary.to_pylist()
        ],
        np.int64,
    )
    found: npt.NDArray[np.int64] = lookup[schemas.indices.to_numpy(), tables.indices.to_numpy()]
    return found
