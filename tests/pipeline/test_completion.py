"""Which refresh brings the rows of a table: names go from one table to another."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pgtide.log.refreshes import Refresh, RefreshStore, Standing
from pgtide.log.storage import Storage
from pgtide.pipeline.completion import Completion
from pgtide.position import Lsn, Position
from pgtide.shape import Shape

AT = Position(Lsn(1000), 3)


@pytest.fixture
def log(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def covers(log: Storage, name: str, oid: int) -> bool:
    return Completion(log).covers(("public", name), oid, AT)


def test_a_table_is_known_by_its_oid(log: Storage) -> None:
    """Two that swap their names: no read will bring what the other one lacks."""
    RefreshStore(log).add(Refresh("public.a", oid=1))
    assert covers(log, "a", 1)
    assert covers(log, "b", 1), "by whatever name it has"
    assert not covers(log, "a", 2), "which has got its name"
    assert RefreshStore(log).completing("public.b", 1)
    assert not RefreshStore(log).completing("public.a", 2)


def test_by_name_where_nothing_else_is_known(log: Storage) -> None:
    RefreshStore(log).add(Refresh("public.a"))
    assert covers(log, "a", 1)
    assert not covers(log, "b", 1)


def test_a_partition_is_not_all_of_its_table(log: Storage) -> None:
    RefreshStore(log).add(Refresh("public.t_1", oid=11))
    assert not covers(log, "t", 1)


def test_some_rows_are_not_the_table(log: Storage) -> None:
    RefreshStore(log).add(Refresh("public.a", oid=1, low="5"))
    assert not covers(log, "a", 1)


@pytest.mark.parametrize(
    ("standing", "covered"),
    [
        (Standing(state="running"), True),
        (Standing(state="paused"), True),
        (Standing(state="done", until=Lsn(1001)), True),
        (Standing(state="done", until=Lsn(1000)), False),
        (Standing(state="failed"), False),
        (Standing(state="cancelled"), False),
    ],
)
def test_only_what_is_still_to_come(log: Storage, standing: Standing, covered: bool) -> None:
    request = Refresh("public.a", oid=1)
    RefreshStore(log).add(request)
    RefreshStore(log).save(request.id, standing)
    assert covers(log, "a", 1) == covered


def test_what_is_asked_for_is_said_once(log: Storage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pgtide.pipeline.completion")
    shape = Shape(7, "public", "a", ())
    for _ in range(2):
        Completion(log).ask(shape, AT, "a filter looks at the column")
    (line,) = caplog.messages
    assert line == "public.a is to be read again behind 0/3E8:3: a filter looks at the column"
