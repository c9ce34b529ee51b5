"""Of what a TRUNCATE makes void only columns and names are left to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pgtide.pipeline.steps import (
    Dropped,
    Renamed,
    Reshaped,
    Rows,
    Step,
    Swept,
    Truncated,
    group_steps,
)
from pgtide.pipeline.voiding import what_counts
from pgtide.position import Lsn, Position
from pgtide.shape import Column, Shape
from pgtide.spark.compaction import Traits
from pgtide.spark.layout import Layout
from pgtide.spark.sweeps import Sweep

ROOT, LOW, HIGH = 1, 11, 12
T = ("public", "t")
LEAVES = (LOW, HIGH)


def layout(*columns: str, oid: int = ROOT, table: str = "t", keyed: bool = True) -> Layout:
    found = tuple(Column(name, 23, attnum=number) for number, name in enumerate(columns, 1))
    return Layout(Shape(oid, "public", table, found), columns[:1] if keyed else ())


IDS, MORE, BAG = layout("id"), layout("id", "n"), layout("id", keyed=False)


def at(number: int) -> Position:
    return Position(Lsn(number))


def rows(low: int, *oids: int, high: int | None = None, of: Layout = IDS) -> Rows:
    """Rows of these relations; of the whole table by its own."""
    shapes = tuple(Shape(oid, "public", str(oid), of.columns, id=oid) for oid in oids)
    traits = Traits(old_rows=False)
    return Rows(of.table, of, shapes, at(low), at(high or low), 1, traits)


def truncated(number: int, partition: int | None = None, of: Layout = IDS) -> Truncated:
    return Truncated(of.table, at(number), of, partition)


def swept(number: int, *partitions: int | None, of: Layout = IDS) -> Swept:
    sweeps = tuple(Sweep.of({"older_than": "0/1:0"}, at(number), p) for p in partitions)
    return Swept(of.table, at(number), of, sweeps)


def counting(steps: Sequence[Step]) -> list[Step]:
    return what_counts(steps, lambda _: True)


def test_one_truncate_and_the_rows_behind_it() -> None:
    burst: list[Step] = [
        step for n in range(0, 40, 2) for step in (rows(n, ROOT), truncated(n + 1))
    ]
    last = rows(40, ROOT)
    assert counting([*burst, last]) == [truncated(39), last]
    # Somebody has to make the table.
    assert counting(burst) == [rows(38), truncated(39)]


def test_rows_that_stay_as_deleted_ones() -> None:
    steps: list[Step] = [rows(1, ROOT), truncated(2), rows(3, ROOT), truncated(4), rows(5, ROOT)]
    assert what_counts(steps, lambda _: False) == steps
    without_key = truncated(4, of=BAG)
    steps[3] = without_key
    assert what_counts(steps, lambda step: step is without_key) == [
        without_key,
        steps[4],
    ]


def test_a_partition() -> None:
    """Only its own rows are void; those of others are written at once."""
    steps: list[Step] = [
        rows(1, *LEAVES),
        truncated(2, LOW),
        rows(3, *LEAVES),
        truncated(4, LOW),
        truncated(5, LOW),
        rows(6, *LEAVES),
    ]
    assert counting(steps) == [
        rows(1, HIGH, high=3),
        truncated(5, LOW),
        steps[5],
    ]
    assert counting([*steps, truncated(7)]) == [rows(6), truncated(7)]
    # TRUNCATE of a partitioned table names each of its partitions.
    emptied: list[Step] = [truncated(7, LOW), truncated(8, HIGH)]
    assert counting([*steps, *emptied]) == [rows(6), emptied[0], emptied[1]]


def test_a_partition_with_rows_that_lack_values() -> None:
    """What they need has to be there wherever the batch is cut off."""
    patch = rows(3, *LEAVES, of=MORE)
    patch = replace(patch, traits=replace(patch.traits, unsent=(1,)))
    steps: list[Step] = [rows(1, *LEAVES), Reshaped(T, at(2), MORE), patch]
    parted = [*steps, truncated(4, LOW, MORE)]
    assert counting(parted) == parted
    whole = truncated(4, of=MORE)
    assert counting([*steps, whole]) == [rows(1), steps[1], replace(patch, shapes=()), whole]


def test_columns_and_names_are_followed() -> None:
    """By relation: a table has the same rows under any name, and its name may be another's."""
    as_u, other = layout("id", "n", table="u"), layout("id", oid=2)
    steps: list[Step] = [
        rows(1, ROOT),
        truncated(2),
        rows(3, ROOT),
        Reshaped(T, at(4), MORE, {2: "7"}),
        rows(5, ROOT, of=MORE),
        Renamed(T, at(6), ("public", "u"), ROOT),
        Reshaped(T, at(7), other),
        rows(8, 2, of=other),
        truncated(9, of=as_u),
        Dropped(T, at(10), 1),
    ]
    assert counting(steps) == [
        rows(3),
        steps[3],
        rows(5, of=MORE),
        *steps[5:],
    ]


def test_sweeps() -> None:
    """One before a TRUNCATE finds nothing; rows that one behind it has parted stay apart."""
    steps: list[Step] = [
        swept(1, None),
        rows(2, ROOT),
        swept(3, None),
        truncated(4),
        swept(5, None),
    ]
    assert counting(steps) == [rows(2), truncated(4), steps[4]]
    of_both: list[Step] = [swept(1, *LEAVES, None), truncated(2, LOW)]
    assert counting(of_both) == [swept(1, HIGH, None), truncated(2, LOW)]
    parted: list[Step] = [
        rows(1, *LEAVES, of=BAG),
        truncated(2, LOW, BAG),
        rows(3, *LEAVES, of=BAG),
        truncated(4, LOW, BAG),
        swept(5, HIGH, of=BAG),
    ]
    assert counting(parted)[:2] == [rows(1, HIGH, of=BAG), rows(3, HIGH, of=BAG)]


@pytest.mark.parametrize("renamed", [True, False])
def test_a_truncate_under_a_name_that_nobody_told(renamed: bool) -> None:
    """It has to come behind the rows that its table has under the old one."""
    steps: list[Step] = [
        rows(1, ROOT),
        truncated(2, of=layout("id", oid=ROOT if renamed else 2, table="u")),
    ]
    assert [work.steps for work in group_steps(steps)] == (
        [tuple(steps)] if renamed else [(steps[0],), (steps[1],)]
    )
