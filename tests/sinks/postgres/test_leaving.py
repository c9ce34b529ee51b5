"""Partitions that leave their table at the source, where the target does not replay how."""

from __future__ import annotations

import pytest

from pgtide.errors import TargetError
from pgtide.postgres.connection import connect
from pgtide.sinks.postgres.skipping import skip
from tests.sinks.postgres.replicas import PIPELINE, Replica

TABLES = """CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (10) TO (20);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (20) TO (30);
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (30) TO (40);
CREATE TABLE p4 PARTITION OF p FOR VALUES FROM (40) TO (50);
CREATE TABLE flat (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE f1 PARTITION OF flat FOR VALUES FROM (10) TO (20);
INSERT INTO p VALUES (10), (11), (20), (30), (40);
INSERT INTO flat VALUES (10);
"""
SELECTED = {"tables": ["public.p", "public.flat"]}


def skip_last(replica: Replica) -> None:
    event = replica.captured.events("ddl")[-1]
    with connect(replica.target.url) as connection:
        skip(connection, replica.captured.log, PIPELINE, event.position)


def test_rows_leave_with_the_command_or_without(replica: Replica) -> None:
    """Whatever was done with the command, the table has the rows that it has at the source."""
    replica.captured.run(TABLES)
    replica.follow(SELECTED)
    replica.captured.run("INSERT INTO p VALUES (12);\nDROP TABLE p1;\nINSERT INTO p VALUES (41);\n")
    replica.follow(SELECTED, ddl=["*", "!table"])
    replica.check_equal("p")
    assert replica.rows("p1") == []
    replica.captured.run("ALTER TABLE p DETACH PARTITION p2;\n")
    replica.captured.capture()
    skip_last(replica)  # and nothing done by hand
    replica.follow(SELECTED)
    replica.check_equal("p")
    assert replica.rows("p2") == []
    replica.target.execute("ALTER TABLE p DETACH PARTITION p3")
    replica.captured.run("ALTER TABLE p DETACH PARTITION p3;\n")
    replica.captured.capture()
    skip_last(replica)  # done by hand: the rows are the detached table's
    replica.follow(SELECTED)
    replica.check_equal("p")
    assert replica.rows("p3", "id") == [(30,)]


def test_rows_that_are_in_one_table_at_the_target(replica: Replica) -> None:
    replica.captured.run(TABLES)
    replica.follow(SELECTED)
    replica.target.execute("DROP TABLE flat; CREATE TABLE flat (id int PRIMARY KEY)")
    replica.target.execute("INSERT INTO flat VALUES (10)")
    replica.captured.run("DROP TABLE f1;\n")
    with pytest.raises(TargetError, match="cannot tell from others") as caught:
        replica.follow(SELECTED, ddl=[])
    assert "public.flat has no partitions there" in caught.value.detail
    assert "pgtide skip --pipeline replica" in caught.value.hint
    replica.target.execute("DELETE FROM flat")
    skip_last(replica)
    replica.follow(SELECTED, ddl=[])
    replica.check_equal("flat")
