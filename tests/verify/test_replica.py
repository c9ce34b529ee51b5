"""A Postgres target: what is different is found, what is equal is not; without Spark."""

from __future__ import annotations

from pgtide.verify.report import Difference
from tests.verify.lake import table_report
from tests.verify.replica import Replica, equal
from tests.verify.test_verifying import KINDS, ROWS

PLANTED = (
    "DELETE FROM t WHERE id = 17",
    "UPDATE t SET name = 'name 20!' WHERE id = 20",
    "UPDATE t SET name = '' WHERE id = 50000000",
    "UPDATE t SET exact = '42.5' WHERE id = 42",
    "UPDATE t SET at = at AT TIME ZONE 'Europe/Berlin' WHERE id = 77",
    "UPDATE t SET local = local - INTERVAL '2' HOUR, ok = NULL WHERE id = 78",
    "INSERT INTO t SELECT 99999999, n, price, exact, name, at, local, ok, uid, f, g"
    " FROM t WHERE id = 1",
)
FOUND = [
    Difference("different", ("20",), ("name",)),
    Difference("different", ("42",), ("exact",)),
    Difference("different", ("50000000",), ("name",)),
    Difference("different", ("77",), ("at",)),
    Difference("different", ("78",), ("local", "ok")),
    Difference("extra", ("99999999",)),
    Difference("missing", ("17",)),
]


def test_what_was_planted_is_found(replica: Replica) -> None:
    replica.run(KINDS)
    replica.captured.execute(ROWS, [1, 3000])
    replica.captured.run("INSERT INTO t (id, name) VALUES (50000000, NULL), (50000001, '');\n")
    replica.fill("t")
    report = replica.verify()
    assert equal(report, ["t"])
    clean = table_report(report, "t")
    assert (clean.rows, clean.target_rows, clean.left_out) == (3002, 3002, {})
    replica.plant(*PLANTED)
    for options in ({}, {"sample": 1.0, "seed": "s"}, {"part_rows": 500}):
        found = table_report(replica.verify(**options), "t")
        assert (found.missing, found.extra, found.different) == (1, 1, 5), options
        assert (found.key, found.differences) == (("id",), FOUND)
