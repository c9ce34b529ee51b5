"""The last state of each key from rows as Arrow has them, as lines for stages; without Spark's SQL.

The same as ``keyed_state`` makes of tables whose events have sent all of their values and that no
rule changes: most tables, most of the time. What a key, a move and the order of events is stands in
``keyed_state`` and ``keyed_events``; both ways give the same lines. Spark needs 0.2 s to plan a
batch however small it is, and sorts large ones by texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from pgtide.errors import LogError
from pgtide.log.sizes import cut, value_sizes
from pgtide.position import Lsn, Position
from pgtide.sinks.postgres.staged_rows import TableRows
from pgtide.spark.layout import ROW_OPS, TableName
from pgtide.wal.copy_lines import copy_lines
from pgtide.wal.keyed_lists import Keyed, KeyPlaces, Numbers, hashes, moved, newest

pc: Any = compute  # its stubs know fewer kinds of arguments than the functions take

COLUMNS = ["lsn", "seq", "op", "shape", "before", "after"]
LINES_BYTES = 1 << 20  # of values that are made lines at once
LINES_ROWS = 20_000  # likewise: what stands before the values takes more than small ones do
_NO_SHAPE: Any = 0  # no shape has this id
_NEW, _KNOWN, _READ = "a", "p", "r"


@dataclass(frozen=True)
class PlainShape:
    """What is to be known of a shape's rows."""

    id: int
    name: TableName  # under which its rows are logged
    owner: int  # of all shapes of a table the same: a row may move from partition to partition
    width: int
    keys: tuple[int, ...]
    each: bool  # every event is a row to write


@dataclass(frozen=True)
class States:
    """Rows that are to be there, or to be gone, each with the first and the last of its events."""

    slots: Numbers  # which of the shapes
    segments: Numbers
    lsn: Numbers
    at: Numbers  # twice the place in the transaction; of a move, one less where it leaves its key
    first_lsn: Numbers
    first_at: Numbers
    gone: npt.NDArray[np.bool_]
    known: npt.NDArray[np.str_]  # by the first event, see ``staged_rows``
    values: pa.ListArray[Any]

    def take(self, chosen: npt.NDArray[Any]) -> States:
        """Some of them, by a mask or by numbers."""
        if chosen.dtype == np.bool_ and chosen.all():
            return self
        columns = {name: getattr(self, name)[chosen] for name in _PLAIN}
        numbers: Any = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return States(**columns, values=self.values.take(pa.array(numbers)))

    @staticmethod
    def joined(parts: Sequence[States]) -> States:
        columns = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _PLAIN}
        values: Any = pa.concat_arrays([part.values for part in parts])
        return States(**columns, values=values)

    @property
    def nbytes(self) -> int:
        """In memory: of rows with few values it is not these that take it."""
        return int(self.values.nbytes + sum(getattr(self, name).nbytes for name in _PLAIN))

    def __len__(self) -> int:
        return len(self.lsn)


_PLAIN = [field.name for field in fields(States) if field.name != "values"]


@dataclass(frozen=True)
class PlainTables:
    """Tables whose rows are compacted here; plain data, so that it can be sent to tasks."""

    shapes: tuple[PlainShape, ...]  # by id
    cuts: tuple[Position, ...]  # where segments begin, but for the first

    @classmethod
    def of(cls, tables: Sequence[TableRows], cuts: Sequence[Position]) -> PlainTables:
        """Tables whose rows need no more than that: ``TableRows.plain``."""
        assert all(table.plain for table in tables), "nothing may pass by the rules of a table"
        shapes = []
        for owner, table in enumerate(tables):
            for shape in table.shapes:
                names = [column.name for column in shape.columns]
                keys = tuple(names.index(name) for name in table.layout.key_names)
                name, width = (shape.schema, shape.table), len(names)
                shapes.append(PlainShape(shape.id, name, owner, width, keys, table.as_they_are))
        return cls(tuple(sorted(shapes, key=lambda shape: shape.id)), tuple(cuts))

    @property
    def names(self) -> frozenset[TableName]:
        return frozenset(shape.name for shape in self.shapes)

    @cached_property
    def _ids(self) -> Numbers:
        return np.array([shape.id for shape in self.shapes], np.int64)

    @cached_property
    def _keys(self) -> KeyPlaces:
        return KeyPlaces.of([shape.keys for shape in self.shapes])

    @cached_property
    def _each(self) -> npt.NDArray[np.bool_]:
        return np.array([shape.each for shape in self.shapes], np.bool_)

    # -- what events leave behind -----------------------------------------------------------

    def states(self, rows: pa.Table) -> States:
        """What each event says; one that took a row to another key says two things."""
        rows = rows.filter(self._mine(rows))
        slots = np.searchsorted(self._ids, rows["shape"].to_numpy())
        before, after = (self._checked(_list(rows[side]), slots, rows) for side in _SIDES)
        gone = pc.equal(rows["op"], "delete").to_numpy()
        lsn, seq = rows["lsn"].to_numpy(), rows["seq"].to_numpy()
        _refuse_halves(after if not gone.any() else _chosen(before, after, gone), rows)
        updates = pc.equal(rows["op"], "update").to_numpy() & _there(before)
        left = self._moved(before, after, slots, np.flatnonzero(updates))
        known = np.where(pc.equal(rows["op"], "insert").to_numpy(), _NEW, _KNOWN)
        known[pc.equal(rows["op"], "read").to_numpy()] = _READ
        known[left] = _NEW
        count = len(rows)
        order = np.concatenate([np.arange(count), left])
        leaves = np.arange(len(order)) >= count
        at = 2 * seq[order] + np.where(leaves, 0, 1)
        gone = gone[order] | leaves
        return States(
            slots=slots[order],
            segments=self._segments(lsn, seq)[order],
            lsn=lsn[order],
            at=at,
            first_lsn=lsn[order],
            first_at=at,
            gone=gone,
            known=np.where(leaves, _KNOWN, known[order]),
            values=_values(before, after, order, gone),
        )

    def _mine(self, rows: pa.Table) -> Any:
        return pc.and_(
            pc.is_in(rows["op"], pa.array(ROW_OPS)),
            pc.is_in(pc.fill_null(rows["shape"], _NO_SHAPE), pa.array(self._ids)),
        )

    def _checked(self, side: Any, slots: Numbers, rows: pa.Table) -> Any:
        """Reading past the end of a row would be reading another one."""
        widths = np.array([shape.width for shape in self.shapes], np.int64)[slots]
        sizes = pc.list_value_length(side).fill_null(-1).to_numpy()
        wrong = np.flatnonzero((sizes != widths) & (sizes >= 0))
        if len(wrong):
            raise _damaged(rows, int(wrong[0]))
        return side

    def _moved(self, before: Any, after: Any, slots: Numbers, numbers: Numbers) -> Numbers:
        """Of updates that have sent an old row, those that changed the key."""
        if not len(numbers):
            return numbers
        rows = pa.array(numbers)
        changed = moved(before.take(rows), after.take(rows), slots[numbers], self._keys)
        return numbers[changed & ~self._each[slots[numbers]]]

    def _segments(self, lsn: Numbers, seq: Numbers) -> Numbers:
        found = np.zeros(len(lsn), np.int64)
        for cut_ in self.cuts:
            found += (lsn > cut_.lsn) | ((lsn == cut_.lsn) & (seq >= cut_.seq))
        return found

    # -- compaction -------------------------------------------------------------------------

    def compacted(self, states: States, share: int = 0, shares: int = 1) -> States:
        """The last state of each key, of one of several shares of all keys."""
        each = self._each[states.slots]
        alone, keyed = states.take(each), states.take(~each)
        if shares > 1:
            alone = alone.take(((alone.lsn >> 3) + (alone.at >> 1)) % shares == share)
        if not len(keyed):
            return alone
        found = self._newest(keyed, share, shares)
        return States.joined([alone, found]) if len(alone) else found

    def _newest(self, states: States, share: int, shares: int) -> States:
        mixed = hashes(self._told_apart(states))
        if shares > 1:
            mine = ((mixed >> 40) & 0xFFFF) % shares == share  # the lowest bits choose cells
            states, mixed = states.take(mine), mixed[mine]
        firsts, lasts = newest(
            self._told_apart(states),
            np.ascontiguousarray(mixed),
            (states.first_lsn, states.first_at),
            (states.lsn, states.at),
        )
        if len(lasts) == len(states):
            return states
        known, lsn, at = (getattr(states, n)[firsts] for n in ("known", "first_lsn", "first_at"))
        last = states.take(lasts)
        columns = {name: getattr(last, name) for name in (*_PLAIN, "values")}
        return States(**{**columns, "known": known, "first_lsn": lsn, "first_at": at})

    def _told_apart(self, states: States) -> Keyed:
        owners = np.array([shape.owner for shape in self.shapes], np.int64)[states.slots]
        groups = owners * (len(self.cuts) + 1) + states.segments
        return Keyed(states.values, states.slots, groups, self._keys)

    # -- lines ------------------------------------------------------------------------------

    def lines(self, states: States) -> Iterator[tuple[int, memoryview, int]]:
        """Stage by stage its lines, in bounded parts; what came and went again has none."""
        leaves = ~(states.gone & (states.known == _NEW))
        sizes = value_sizes(states.values)
        for slot in np.unique(states.slots[leaves]):
            mine = np.flatnonzero(leaves & (states.slots == slot))
            for begin, end in cut(sizes[mine], LINES_ROWS, LINES_BYTES):
                part = states.take(mine[begin:end])
                yield self.shapes[slot].id, copy_lines(part.values, _heads(part)), len(part)


_SIDES = ("before", "after")


def _list(column: Any) -> Any:
    """The lists of a column in one piece, which has them from its beginning on."""
    chunks = column.chunks or [pa.array([], column.type)]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _there(rows: Any) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = rows.is_valid().to_numpy(zero_copy_only=False)
    return found


def _refuse_halves(sent: Any, rows: pa.Table) -> None:
    """Events without the row that they are about."""
    if sent.null_count:
        raise _damaged(rows, int(np.flatnonzero(~_there(sent))[0]))


def _damaged(rows: pa.Table, number: int) -> LogError:
    lsn, seq = (rows[name][number].as_py() for name in ("lsn", "seq"))
    return LogError(
        "a row of the log does not fit its shape",
        detail=f"It is the row at {Position(Lsn(lsn), seq)}.",
        hint="The log is damaged: restore it from a backup or start a new one.",
    )


def _values(before: Any, after: Any, order: Numbers, gone: npt.NDArray[np.bool_]) -> Any:
    if len(order) == len(after) and not gone.any():
        return after
    return pa.concat_arrays([after, before]).take(pa.array(order + np.where(gone, len(after), 0)))


def _chosen(before: Any, after: Any, gone: npt.NDArray[np.bool_]) -> Any:
    return _values(before, after, np.arange(len(after)), gone)


def _heads(states: States) -> Any:
    """What stands before the values of each line: see ``stages.OWN``."""
    parts = (
        pc.cast(pa.array(states.segments), pa.string()),
        pc.cast(pa.array(states.lsn), pa.string()),
        pc.cast(pa.array(states.at >> 1), pa.string()),
        pa.array(np.where(states.gone, "d", "u")),
        pa.array(states.known),
    )
    return pc.binary_join_element_wise(*parts, r"\N", r"\N", "", "\t")
