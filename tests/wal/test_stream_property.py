"""Any stream of transactions, cut anywhere: the log's rows are what the transactions were."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtide.capture.buffer import RowBuffer, Stretch
from pgtide.log.event import UNCHANGED, Value
from pgtide.position import Lsn
from pgtide.wal.decoder import Decoder
from tests.wal import pgoutput as p

TABLES = {16_400: ("orders", 2), 16_401: ("skip_me", 1), 16_402: ("wide", 5), 16_403: ("none", 0)}
UNWANTED = 16_401
ENCODER = ThreadPoolExecutor(1)
ALIGNMENT = 8  # WAL records begin at multiples of eight

TEXTS = st.one_of(st.none(), st.text(max_size=6))


@dataclass
class Sent:
    """A stretch of the stream: its messages, and the rows that the log must have for it."""

    messages: list[bytes]
    rows: list[tuple[Any, ...]]
    end: int
    filtered: int = 0


@dataclass
class Collected:
    """Stands where the log's writer does: keeps what would become visible with a commit."""

    tables: list[pa.Table] = field(default_factory=list)

    def write_part(self, rows: pa.Table) -> list[AddAction]:
        self.tables.append(rows)
        index = len(self.tables) - 1
        return [AddAction(str(index), 0, {}, 0, True, "{}")]


@st.composite
def operations(draw: st.DrawFn, oid: int) -> tuple[bytes, dict[str, Any]]:
    """One row message and what its log row says."""
    width = TABLES[oid][1]
    row = st.lists(TEXTS, min_size=width, max_size=width)
    kind = draw(st.sampled_from(["insert", "update", "keyed", "full", "delete", "delete_full"]))
    new: list[Value] = list(draw(row))
    old = draw(row)
    if kind in ("update", "keyed", "full"):
        holes = draw(st.lists(st.booleans(), min_size=width, max_size=width))
        new = [UNCHANGED if hole else value for hole, value in zip(holes, new, strict=True)]
    after = [None if value is UNCHANGED else value for value in new]
    unchanged = [index for index, value in enumerate(new) if value is UNCHANGED] or None
    if kind == "insert":
        return p.insert(oid, new), {"op": "insert", "after": after}
    if kind == "update":
        return p.update(oid, new), {"op": "update", "after": after, "unchanged": unchanged}
    if kind in ("keyed", "full"):
        encoded = p.update(oid, new, old, "K" if kind == "keyed" else "O")
        return encoded, {"op": "update", "before": old, "after": after, "unchanged": unchanged}
    return p.delete(oid, old, "K" if kind == "delete" else "O"), {"op": "delete", "before": old}


@st.composite
def transactions(draw: st.DrawFn, lsn: int) -> Sent:
    """One transaction at ``lsn``; it may be empty, or hold nothing that is wanted."""
    end = lsn + ALIGNMENT * draw(st.integers(1, 50))
    messages, expected, filtered = [p.begin(lsn, lsn, lsn % 1000)], [], 0
    seq = 0
    for _ in range(draw(st.integers(0, 8))):
        oid = draw(st.sampled_from(list(TABLES)))
        kind = draw(st.sampled_from(["row", "row", "row", "truncate", "message", "own", "again"]))
        if kind == "row":
            encoded, row = draw(operations(oid))
            messages.append(encoded)
        elif kind == "truncate":
            messages.append(p.truncate([oid]))
            row = {"op": "truncate"}
        elif kind == "message":
            messages.append(p.message("app", b"text", lsn))
            row, oid = {"op": "message", "payload": "text"}, 0
        else:  # announcements and pgtide's own messages take no place
            own = p.message(p.OWN_PREFIX, b"", lsn)
            messages.append(own if kind == "own" else _relation(oid))
            continue
        if oid == UNWANTED:
            filtered += 1
        else:
            table = TABLES[oid][0] if oid else None
            expected.append({"lsn": lsn, "seq": seq, "table": table, "last": False, **row})
        seq += 1
    if expected:
        expected[-1]["last"] = True
    return Sent([*messages, p.commit(lsn, end)], [_row(row) for row in expected], end, filtered)


@st.composite
def streams(draw: st.DrawFn) -> list[Sent]:
    """Transactions and messages between them, at positions that grow as the WAL does."""
    sent: list[Sent] = []
    at = ALIGNMENT * draw(st.integers(1, 1000))
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.integers(0, 3)):
            sent.append(draw(transactions(at)))
        else:
            # The server names the end of the message's record; the next commit may begin there.
            at += ALIGNMENT * draw(st.integers(1, 9))
            message = p.message("app", b"out", at, transactional=False)
            row = {"lsn": at - 1, "seq": 0, "op": "message", "payload": "out", "last": True}
            sent.append(Sent([message], [_row(row)], at))
        at = sent[-1].end + ALIGNMENT * draw(st.integers(0, 2))
    return sent


def _relation(oid: int) -> bytes:
    table, width = TABLES[oid]
    return p.relation(oid, "public", table, [f"c{index}" for index in range(width)])


FIELDS = ("lsn", "seq", "op", "table", "before", "after", "unchanged", "payload", "last")


def _row(facts: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(facts.get(name) for name in FIELDS)


def _cut(messages: Sequence[bytes], cuts: Sequence[int]) -> list[Sequence[bytes]]:
    bounds = [0, *sorted({cut % (len(messages) + 1) for cut in cuts}), len(messages)]
    return [messages[low:high] for low, high in pairwise(bounds)]


@settings(deadline=None, max_examples=100)
@given(
    streams(),
    st.lists(st.integers(0, 200), max_size=12),
    st.integers(0, 8),
    st.sampled_from([1, 300, 1 << 20]),
    st.integers(0, 26),
)
def test_rows_in_the_log_equal_the_stream(
    sent: list[Sent], cuts: list[int], behind: int, limit: int, gap: int
) -> None:
    resume = Lsn(([0] + [part.end for part in sent])[behind % (len(sent) + 1)])
    announced = [p.begin(1), *[_relation(oid) for oid in TABLES], p.commit(1, 2)]
    messages = announced + [one for part in sent for one in part.messages]

    decoder = Decoder(p.SmallCatalog(), resume=resume)
    writer = Collected()
    buffer = RowBuffer(writer, limit, ENCODER)  # type: ignore[arg-type]
    wanted = [part for part in sent if part.end > resume]
    visible: list[tuple[Any, ...]] = []
    handed_over = 0

    def commit(stretches: list[Stretch]) -> None:
        """What is visible after a commit is exactly what its position says."""
        nonlocal handed_over
        for stretch in stretches:
            for part in stretch.actions():
                visible.extend(_row(row) for row in writer.tables[int(part.path)].to_pylist())
            complete = [part for part in wanted if part.end <= stretch.end]
            assert visible == [row for part in complete for row in part.rows]
            handed_over += stretch.rows

    for chunk in _cut(messages, cuts):
        buffer.add(decoder.decode(p.chunk_of(chunk, gap=gap)), decoder.slots)
        if buffer.full:
            buffer.write_behind(decoder.slots)
            commit(buffer.take_written())
    commit(buffer.take_all(decoder.slots))

    assert visible == [row for part in wanted for row in part.rows]
    assert decoder.filtered == sum(part.filtered for part in wanted)
    assert handed_over == len(visible)
    assert buffer.end == max([resume, *[part.end for part in wanted]], default=resume) or not sent
