"""A process and everything that it has started, by /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import peak_rss_mb


@dataclass(frozen=True, slots=True)
class Process:
    """``name`` is ``driver`` for the first one, else the program's and its number."""

    name: str
    cpu_s: float
    peak_mb: float


def descendants(of: int | None = None) -> list[Process]:
    """A process, this one if none is named, its children, theirs, and so on, as far as they run.

    Not by session: the capture of ``pgtide run`` has one of its own.
    """
    first = os.getpid() if of is None else of
    return [found for pid in _tree(first) if (found := _process(pid, first)) is not None]


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for each in children:
            yield from _tree(int(each))


def _process(pid: int, first: int) -> Process | None:
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        fields = tail.split()
        # Its own time, and that of children that have ended.
        ticks = sum(int(fields[index]) for index in range(11, 15))
        name = "driver" if pid == first else f"{head.partition('(')[2]} {pid}"
        return Process(name, ticks / os.sysconf("SC_CLK_TCK"), peak_rss_mb(pid))
    except OSError:
        return None
