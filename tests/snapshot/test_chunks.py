"""Chunks of a table: all of its pages, evenly for all tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgtide.snapshot.chunks import even_step


@given(st.integers(1, 10**6), st.integers(1, 8192), st.integers(1, 64))
def test_chunks_are_alike_and_as_many_for_each_task(pages: int, most: int, tasks: int) -> None:
    step = even_step(pages, most, tasks)
    assert 1 <= step <= most
    assert 2 * step > min(most, pages)  # two of them are never read together


def test_the_last_round_has_work_for_all() -> None:
    # 610 MB in chunks of 64 MB at most would be ten, the last one a small one.
    step = even_step(78_125, 8_192, 4)
    sizes = [min(step, 78_125 - begin) for begin in range(0, 78_125, step)]
    assert len(sizes) == 12
    assert max(sizes) - min(sizes) < 12
