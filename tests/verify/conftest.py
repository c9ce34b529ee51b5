"""``replica``: a second database beside the captured one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database, Server
from tests.verify.replica import Replica


@pytest.fixture
def replica(captured: Captured, server: Server) -> Iterator[Replica]:
    target = Database.create(server)
    yield Replica(captured, target)
    target.drop()
