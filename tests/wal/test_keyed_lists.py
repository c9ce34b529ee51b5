"""Rows by key: the first and the last of each, and those that moved, wherever they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgtide.log.schema import TEXT_LIST
from pgtide.wal.keyed_lists import Keyed, KeyPlaces, hashes, moved, newest

KEYS = ((0, 2), (2, 1))  # of two layouts: the same columns in other places
texts = st.none() | st.sampled_from(["", "a", "b", "ab", "ba", "\0", "ä", "a" * 9, "a" * 8 + "b"])
rows = st.lists(
    st.tuples(
        st.tuples(texts, texts, texts),
        st.integers(0, 1),  # layout
        st.integers(-1, 1),  # group
        st.tuples(st.integers(0, 3), st.integers(0, 3)),  # first
        st.tuples(st.integers(0, 3), st.integers(0, 3)),  # last
    ),
    max_size=40,
)


def places(numbers: list[tuple[int, int]]) -> tuple[Any, Any]:
    found = np.array([*numbers], np.int64).reshape(-1, 2)
    return np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1])


def keyed(given: list[Any], begin: int) -> Keyed:
    """The rows behind ``begin`` others, which lie before them in memory."""
    lists: Any = pa.array([["x"]] * begin + [row for row, *_ in given], TEXT_LIST)
    layouts, groups = (np.array([item[n] for item in given], np.int64) for n in (1, 2))
    return Keyed(lists.slice(begin), layouts, groups, KeyPlaces.of(KEYS))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=200)
@given(rows, st.integers(0, 9))
def test_the_first_and_the_last_row_of_each_key(given: list[Any], begin: int) -> None:
    rows = keyed(given, begin)
    first, last = places([item[3] for item in given]), places([item[4] for item in given])
    firsts, lasts = newest(rows, hashes(rows), first, last)
    wanted: dict[Any, list[int]] = {}
    for number, (row, layout, group, *_) in enumerate(given):
        key = (group, *(row[place] for place in KEYS[layout]))
        wanted.setdefault(key, []).append(number)
    # Of rows that stand at the same place any will do: in the log no two do.
    assert [given[n][3] for n in firsts] == [
        min(given[n][3] for n in numbers) for numbers in wanted.values()
    ]
    assert [given[n][4] for n in lasts] == [
        max(given[n][4] for n in numbers) for numbers in wanted.values()
    ]
    for numbers, *found in zip(wanted.values(), firsts, lasts, strict=True):
        assert {*found} <= {*numbers}


@settings(deadline=None)
@given(st.lists(st.tuples(st.tuples(texts, texts, texts), st.tuples(texts, texts, texts))))
def test_rows_whose_key_changed(pairs: list[Any]) -> None:
    old, new = (pa.array([pair[side] for pair in pairs], TEXT_LIST) for side in (0, 1))
    layouts = np.arange(len(pairs), dtype=np.int64) % 2
    found = moved(old, new, layouts, KeyPlaces.of(KEYS))  # type: ignore[arg-type]
    assert found.tolist() == [
        any(before[place] != after[place] for place in KEYS[layout])
        for (before, after), layout in zip(pairs, layouts, strict=True)
    ]


def test_keys_whose_hashes_are_equal_are_told_apart() -> None:
    rows = keyed([(("a", None, "x"), 0, 0), (("b", None, "x"), 0, 0)], 0)
    at = places([(1, 0), (2, 0)])
    _, lasts = newest(rows, np.zeros(2, np.int64), at, at)
    assert lasts.tolist() == [0, 1]
