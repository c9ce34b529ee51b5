"""Each kind of DDL, replayed into a second database: the same catalog and the same rows."""

from __future__ import annotations

import pytest

from tests.fixtures.capture import Captured
from tests.fixtures.databases import Server
from tests.sinks.postgres.ddl_replica import (
    Replica,
    rows_of,
    run_script,
    schema_of,
    second_database,
)
from tests.sinks.postgres.ddl_scripts import SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_replayed(captured: Captured, server: Server, name: str) -> None:
    run_script(captured.database, SCRIPTS[name])
    captured.capture()
    with second_database(server) as target:
        Replica(target).apply(captured.events())
        assert schema_of(target) == schema_of(captured.database)
        assert rows_of(target) == rows_of(captured.database)
