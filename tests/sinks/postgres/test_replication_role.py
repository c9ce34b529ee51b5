"""``replication_role: replica``: triggers and foreign keys of the target look the other way."""

from __future__ import annotations

from typing import Any

import pytest

from pgtide.errors import TargetError
from pgtide.sinks.postgres.checking import check_targets
from tests.sinks.postgres.replicas import Replica

CHILDREN = """CREATE TABLE parents (id int PRIMARY KEY);
CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents);
CREATE FUNCTION loud() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'fired'; END$$;
"""
LOUD = "CREATE TRIGGER loud BEFORE INSERT ON children FOR EACH ROW EXECUTE FUNCTION loud()"
STATE = "SELECT tgenabled::text FROM pg_trigger WHERE tgname = 'loud'"


@pytest.mark.slow
def test_triggers_and_foreign_keys_do_not_fire(replica: Replica) -> None:
    """Without it the target's own keys hold, and its triggers are disabled."""
    only = {"tables": ["public.children"]}
    replica.both(CHILDREN)
    replica.target.execute(LOUD)
    replica.captured.run("INSERT INTO parents VALUES (1);\nINSERT INTO children VALUES (1, 1);\n")
    with pytest.raises(TargetError, match="children_parent_fkey"):
        replica.follow(only, ddl=[])
    assert replica.target.execute(STATE) == [("O",)], "taken back with the batch"
    replica.follow(only, ddl=[], replication_role="replica")
    replica.check_equal("children")
    assert replica.target.execute(STATE) == [("O",)]
    assert replica.target.execute("SELECT count(*) FROM pgtide.disabled") == [(0,)]
    replica.captured.run(  # what needs the order of events goes the other way
        "INSERT INTO children VALUES (2, 1);\nUPDATE children SET id = id + 10;\n"
    )
    replica.follow(only, ddl=[], replication_role="replica")
    replica.check_equal("children")


@pytest.mark.slow
def test_a_role_without_the_right(replica: Replica) -> None:
    name = "replica_writer"
    url = replica.target.create_role("LOGIN", name)
    replica.target.execute(f"GRANT CREATE ON DATABASE {replica.target.name} TO {name}")
    replica.target.execute(f"GRANT ALL ON SCHEMA public TO {name}")
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);\n")
    sink: dict[str, Any] = {"url": url, "replication_role": "replica"}

    def failing() -> list[str]:
        checks = check_targets(replica.config(**sink), None)
        return [check.hint for check in checks if check.level == "fail"]

    (hint,) = failing()
    assert "GRANT SET ON PARAMETER session_replication_role" in hint
    with pytest.raises(TargetError) as caught:
        replica.follow(**sink)
    assert "session_replication_role" in caught.value.detail
    replica.target.execute(f"GRANT SET ON PARAMETER session_replication_role TO {name}")
    try:
        assert not failing()
        replica.follow(**sink)
        replica.check_equal("t")
    finally:
        replica.target.execute(f"REVOKE SET ON PARAMETER session_replication_role FROM {name}")
        replica.target.execute(f"DROP OWNED BY {name} CASCADE")
