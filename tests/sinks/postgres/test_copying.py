"""The connection of a worker, and what it keeps."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from pgtide.sinks.postgres.copying import _connections, worker_session
from tests.fixtures.databases import Database


class Waste:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_a_worker_finds_its_waste(target: Database) -> None:
    """Its objects are set aside once, not with each session that follows an error."""
    with worker_session(target.url):
        pass
    assert gc.get_freeze_count() > 0
    with pytest.raises(ZeroDivisionError), worker_session(target.url):
        raise ZeroDivisionError
    waste = weakref.ref(Waste())
    with worker_session(target.url):
        pass
    gc.collect()
    assert waste() is None
    _connections.pop(target.url).close()
