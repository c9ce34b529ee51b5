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


TABLES = """CREATE TABLE bag (a int, b text, twice int GENERATED ALWAYS AS (a * 2) STORED);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE cased (a text, b date, v text, PRIMARY KEY (a, b));
CREATE TABLE computed (id int PRIMARY KEY, v text, n int GENERATED ALWAYS AS (length(v)) STORED,
    m int GENERATED ALWAYS AS (length(v)) STORED);
CREATE TABLE empty (id int PRIMARY KEY);
CREATE TABLE "Odd % {} name" ("Key %" int PRIMARY KEY, "a.b" text, "{}%s" int);
"""
PARTED = """CREATE TABLE parts (id int, at date, v text, PRIMARY KEY (id, at))
    PARTITION BY RANGE (at);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE parts_2 (v text, at date NOT NULL, id int NOT NULL, PRIMARY KEY (id, at));
ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
"""
FILLED = """INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (1, 'a'), (2, NULL), (2, NULL), (3, '');
INSERT INTO cased SELECT 'k' || n % 50, '2024-01-01'::date + n, 'v' || n
    FROM generate_series(1, 300) n;
INSERT INTO computed SELECT n, repeat('x', n) FROM generate_series(1, 9) n;
INSERT INTO "Odd % {} name" VALUES (1, 'x', 1);
INSERT INTO parts SELECT n, '2024-01-01'::date + n, 'p' || n FROM generate_series(1, 50) n;
"""


def test_keys_partitions_and_tables_without_a_key(replica: Replica) -> None:
    """The target may cut a table into other partitions, and need not compute what it has."""
    replica.run(TABLES)
    replica.captured.run(PARTED)
    replica.plant(
        "CREATE TABLE parts (v text, id bigint, at date, PRIMARY KEY (id, at))",
        "ALTER TABLE computed ALTER m DROP EXPRESSION",
    )
    replica.captured.run(FILLED)
    names = ["Odd % {} name", "bag", "cased", "computed", "empty", "parts"]
    replica.fill(*names)
    report = replica.verify()
    assert equal(report, names)
    assert [table.rows for table in report.tables] == [1, 6, 300, 9, 0, 50]
    assert set(table_report(report, "computed").left_out) == {"m"}
    assert set(table_report(report, "bag").left_out) == {"twice"}
    replica.plant(
        "DELETE FROM cased WHERE a = 'k7' AND b = '2024-01-08'",
        "UPDATE cased SET v = 'w' WHERE a = 'k9' AND b = '2024-01-10'",
        "UPDATE parts SET v = 'P' WHERE id IN (5, 45)",
        "INSERT INTO bag (a, b) SELECT a, b FROM bag WHERE a = 3",
        "DELETE FROM bag WHERE a = 2",
        "ALTER TABLE computed ALTER n DROP EXPRESSION",
        "ALTER TABLE computed DROP COLUMN n, ADD COLUMN n int GENERATED ALWAYS AS (id) STORED",
        "UPDATE computed SET v = upper(v) WHERE id = 3",
    )
    for sample in (None, 1.0):
        report = replica.verify(sample=sample, seed="s")
        assert table_report(report, "cased").differences == [
            Difference("different", ("k9", "2024-01-10"), ("v",)),
            Difference("missing", ("k7", "2024-01-08")),
        ]
        assert [one.key for one in table_report(report, "parts").differences] == [
            ("45", "2024-02-15"),
            ("5", "2024-01-06"),
        ]
        assert [one.columns for one in table_report(report, "computed").differences] == [("v",)]
        found = table_report(report, "bag")
        assert (found.missing, found.extra, found.differences) == (2, 1, [])


def test_what_the_target_does_not_have(replica: Replica) -> None:
    replica.captured.run(
        """CREATE TABLE gone (id int PRIMARY KEY);
INSERT INTO gone SELECT generate_series(1, 250);
CREATE TABLE hollow (id int PRIMARY KEY);
CREATE TABLE narrow (id int PRIMARY KEY, v text);
INSERT INTO narrow VALUES (1, NULL), (2, 'x');
CREATE TABLE loose (id int PRIMARY KEY, v text);
INSERT INTO loose VALUES (1, 'a'), (2, 'b');
"""
    )
    replica.plant(
        "CREATE TABLE narrow (id int PRIMARY KEY); INSERT INTO narrow VALUES (1), (2)",
        "CREATE TABLE loose (id int, v text)",
        "INSERT INTO loose VALUES (1, 'a'), (2, 'b'), (2, 'b'), (NULL, 'a'), (NULL, NULL)",
    )
    replica.fill()
    report = replica.verify()
    gone, hollow, loose, narrow = report.tables
    assert (hollow.equal, hollow.note) == (False, "the target has no table public.hollow")
    assert hollow in report.differing
    assert (gone.missing, gone.rows, gone.target_rows) == (250, 250, 0)
    assert gone.note == "the target has no table public.gone"
    assert narrow.note == "the target has no column v"
    assert narrow.differences == [
        Difference("different", ("1",), ("v",)),
        Difference("different", ("2",), ("v",)),
    ]
    assert loose.differences == [
        Difference("extra", (None,)),
        Difference("extra", (None,)),
        Difference("extra", ("2",)),
    ]
    replica.captured.run("UPDATE loose SET v = 'c' WHERE id = 1;\n")
    # Not applied: the target is behind, and says so. Nobody brings it further.
    replica.fill()
    (found,) = replica.verify(only=["public.loose"]).tables
    assert [one.kind for one in found.differences] == ["different", "extra", "extra", "extra"]


def test_rules_and_routes(replica: Replica) -> None:
    replica.captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text, mail text, secret text);
INSERT INTO t SELECT n, 'n' || n, 'm' || n, 's' FROM generate_series(1, 20) n;
CREATE TABLE filtered (id int PRIMARY KEY);
INSERT INTO filtered VALUES (1);
CREATE TABLE one (id int PRIMARY KEY);
CREATE TABLE two (id int PRIMARY KEY);
INSERT INTO two VALUES (1);
"""
    )
    replica.plant(
        "CREATE SCHEMA other; CREATE TABLE other.people (number bigint, title text, mail text)",
        "INSERT INTO other.people SELECT n, 'n' || n, '*' FROM generate_series(1, 20) n",
        "UPDATE other.people SET title = 'x' WHERE number = 4",
        "DELETE FROM other.people WHERE number = 3",
    )
    rules = [
        {"table": "public.t", "exclude": ["secret"]},
        {"table": "public.t", "rename": {"name": "title", "mail": "post"}},
        {"table": "public.t", "transform": {"column": "post", "mask": {}}},
        {"table": "public.t", "rename": {"post": "mail"}},
    ]
    routes = [
        {"table": "public.t", "to": "other.people", "rename": {"id": "number"}},
        {"table": "public.filtered", "operations": ["insert"]},
        {"table": "public.two", "to": "one"},
    ]
    replica.fill()
    report = replica.verify(replica.config(rules=rules, routes=routes))
    table = table_report(report, "t")
    assert table.differences == [
        Difference("different", ("4",), ("name",)),
        Difference("missing", ("3",)),
    ]
    assert set(table.left_out) == {"mail"}
    assert "filter" in table_report(report, "filtered").refused
    assert "other tables" in table_report(report, "one").refused
    assert "other tables" in table_report(report, "two").refused
