"""What ``pgtide check`` says of Postgres targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pgtide.config import Config
from pgtide.errors import TargetError
from pgtide.postgres.verdict import Check
from pgtide.sinks.postgres.bookkeeping import prepare
from pgtide.sinks.postgres.checking import check_targets
from pgtide.sinks.postgres.reaching import connect_target
from pgtide.sinks.postgres.session import database_of
from pgtide.sinks.postgres.target_schema import TargetSchema
from tests.fixtures.databases import Database, Server
from tests.fixtures.postgres import MakeServer, MakeStandby


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    created = Database.create(server)
    yield created
    created.drop()


def config_of(url: str, **pipeline: object) -> Config:
    replica = {"sink": {"type": "postgres", "url": url}, **pipeline}
    source = {"url": "postgresql://nobody@nowhere/none"}
    given = {"source": source, "log": {"path": "unused"}, "pipelines": {"replica": replica}}
    return Config.model_validate(given)


def lines(url: str, **pipeline: object) -> list[Check]:
    return list(check_targets(config_of(url, **pipeline), None))


def test_rights_of_the_role(target: Database) -> None:
    """Each hint is a statement that helps."""
    url = target.create_role("LOGIN")
    target.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    first, second = lines(url)
    assert (first.level, second.level) == ("fail", "warn")
    assert "may not make schema pgtide" in first.message
    assert "may not make tables in schema public" in second.message
    assert [check.level for check in lines(url, tables=["shop.*"])] == ["fail"]
    for check in (first, second):
        target.execute(check.hint.removeprefix("Run there: "))
    (good,) = lines(url)
    assert (good.level, "can be written to" in good.message) == ("ok", True)
    with target.connect() as owner:
        prepare(owner)
    (other,) = lines(url)
    assert (other.level, "may not write to schema pgtide" in other.message) == ("fail", True)
    assert [check.level for check in lines(target.url)] == ["ok"]
    target.execute(f"DROP OWNED BY {target.roles[0]} CASCADE")


def test_a_target_that_is_not_there(target: Database) -> None:
    (check,) = lines(target.url.replace(target.name, "no_such_database"))
    assert check.level == "fail"
    assert "pipelines.replica.sink.url" in check.hint


def test_the_source_itself(target: Database) -> None:
    """Unless its rows go to other tables, or the target has a history of them."""
    with target.connect() as connection:
        source = database_of(connection)

    def check(pipeline: dict[str, Any], **sink: str) -> Check:
        sink = {"type": "postgres", "url": target.url, **sink}
        (found,) = check_targets(config_of(target.url, **pipeline, sink=sink), source)
        return found

    same = check({})
    assert (same.level, "it is the source" in same.message) == ("fail", True)
    assert same.hint == "Name another database in pipelines.replica.sink.url."
    assert check({"routes": [{"table": "public.*", "to": "copy.*"}]}).level == "ok"
    assert check({}, mode="history").level == "ok"


def test_a_standby(make_server: MakeServer, make_standby: MakeStandby) -> None:
    url = make_standby(make_server()).url()
    (check,) = lines(url)
    assert (check.level, "it is a standby" in check.message) == ("fail", True)
    schema = TargetSchema((), (), frozenset(), (), 160_000)
    with (
        connect_target(config_of(url), "replica", application_name="pgtide test") as connection,
        pytest.raises(TargetError, match="the target is a standby"),
    ):
        schema.check(connection)
