"""Every type is compared by what Postgres prints of it, whatever its oid is in either database."""

from __future__ import annotations

from itertools import combinations

import psycopg
import pytest

from pgtide.verify.report import Difference
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer, binaries
from tests.verify.lake import table_report
from tests.verify.replica import Replica, equal

# Of each type values that are easily taken for one another. NULL is one of them for all.
VALUES = {
    "bool": ["t", "f"],
    "int2": ["1", "-1"],
    "int4": ["0", "2147483647"],
    "int8": ["-9223372036854775808", "1"],
    "oid": ["4294967295", "1"],
    "float4": ["0", "-0", "NaN", "Infinity", "1.1", "1.1000001"],
    "float8": ["0", "-0", "NaN", "-Infinity", "0.1", "0.10000000000000002", "5e-324"],
    "numeric": ["1.5", "1.50", "0", "0.000", "NaN", "Infinity", "1e-130", "1.500"],
    "numeric(12,2)": ["1.50", "-1.50", "NaN"],
    "money": ["$1.00", "-$1.00"],
    "text": ["", " ", "a", "A", "é", "e\u0301", "NULL"],
    "varchar(9)": ["", " ", "a ", "a"],
    "char(4)": ["", "a", "A", "ab"],
    '"char"': ["", "a"],
    "name": ["", "a"],
    "bytea": ["", "\\x00", "\\x0000", "\\x5c78"],
    "date": ["2024-02-29", "infinity", "0044-03-15 BC", "5874897-12-31"],
    "time": ["00:00", "24:00", "00:00:00.000001"],
    "timetz": ["00:00+00", "00:00+01", "01:00+01"],
    "timestamp": ["2024-03-01 12:00", "infinity", "-infinity", "2024-03-01 12:00:00.000001"],
    "timestamptz": ["2024-03-01 12:00+00", "2024-03-01 12:00+01", "294276-12-31 23:59+00"],
    "interval": ["1 day", "24:00", "1 mon", "30 days", "-1 day +00:00:01"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000001"],
    "json": ["{}", "{ }", '{"a":1,"a":1}', '{"a":1}', "null"],
    "jsonb": ["{}", '{"a": 1.5}', '{"a": 1.50}', "null"],
    "xml": ["<a/>", "<a></a>", "x"],
    "inet": ["10.0.0.1", "10.0.0.1/24", "::1"],
    "cidr": ["10.0.0.0/8", "10.0.0.0/9"],
    "macaddr": ["08:00:2b:01:02:03", "08:00:2b:01:02:04"],
    "bit(3)": ["101", "100"],
    "varbit": ["", "0", "00"],
    "point": ["(0,0)", "(-0,0)"],
    "tsvector": ["a:1", "a:2", "a"],
    "int4range": ["[1,2)", "empty", "(,2)", "(,)"],
    "numrange": ["[1,2)", "[1,2]", "[1.0,2)"],
    "int4multirange": ["{}", "{[1,2)}", "{[1,2),[4,5)}"],
    "int4[]": ["{}", "{NULL}", "{1}", "[0:0]={1}", "{{1}}"],
    "text[]": ["{}", '{""}', "{NULL}", '{"NULL"}', '{" "}'],
    "float8[]": ["{0}", "{-0}", "{NaN}"],
    "bytea[]": ['{"\\\\x00"}', '{""}'],
    "char(2)[]": ["{a}", "{b}"],
    "mood": ["fine", "so so"],
    "mood[]": ["{fine}", '{"so so"}', "{}"],
    "pair": ["(,)", '("",)', "(,1.5)", "(a,1.5)", "(a,1.50)"],
    "pair[]": ['{"(,)"}', "{NULL}", "{}"],
    "euros": ["1.50", "1.5", "NaN"],
    "code": ["a", "ab"],
    "numbers": ["{1}", "{}"],
    "moods": ["{fine}", "{}"],
    "prices": ["[1.0,2)", "[1,2)", "empty"],
    "extensions.hstore": ["", "a=>1", "a=>NULL", 'a=>"NULL"', "a=>1,b=>2"],
    "extensions.citext": ["a", "A", ""],
    "extensions.citext[]": ["{a}", "{A}"],
}
# Two databases of a server count oids together, so these types have others in the second one.
OWN_TYPES = """CREATE TYPE mood AS ENUM ('fine', 'so so');
CREATE TYPE pair AS (a text, b numeric);
CREATE DOMAIN euros AS numeric;
CREATE DOMAIN code AS char(4);
CREATE DOMAIN numbers AS int[];
CREATE DOMAIN moods AS mood[];
CREATE TYPE prices AS RANGE (subtype = numeric);
CREATE SCHEMA extensions;
"""
Planted = tuple[int, int, str | None]  # row, number of the column, value


def known_values(*databases: Database) -> dict[str, list[str]]:
    """Types that all of these servers have, which may lack extensions and XML."""
    values = dict(VALUES)
    for database in databases:
        query = "SELECT name FROM pg_available_extensions WHERE name IN ('hstore', 'citext')"
        there = {f"extensions.{row[0]}" for row in database.execute(query)}
        for name in [name for name in values if name.startswith("extensions.")]:
            if name.removesuffix("[]") not in there:
                del values[name]
        try:
            database.execute("SELECT '<a/>'::xml")
        except psycopg.errors.FeatureNotSupported:
            values.pop("xml", None)
    return values


def create_table(replica: Replica, values: dict[str, list[str]]) -> None:
    extensions = {n.removesuffix("[]") for n in values if n.startswith("extensions.")}
    more = [f"CREATE EXTENSION {n.split('.')[1]} SCHEMA extensions;\n" for n in sorted(extensions)]
    columns = ", ".join(f"c{n} {name}" for n, name in enumerate(values))
    table = f"CREATE TABLE types (id int PRIMARY KEY, {columns});\n"
    replica.run("".join([OWN_TYPES, *more, table]))


def insert_all(replica: Replica, values: dict[str, list[str]]) -> list[Planted]:
    """A row for each two values of a type; the second of each is what is to be planted."""
    planted: list[Planted] = []
    with replica.captured.database.connect(autocommit=False) as connection:
        for column, (name, some) in enumerate(values.items()):
            for one, other in combinations([None, *some], 2):
                row = len(planted)
                statement = f"INSERT INTO types (id, c{column}) VALUES (%s, %s::text::{name})"
                connection.execute(statement.encode(), [row, one])
                planted.append((row, column, other))
        connection.commit()
    return planted


def plant(replica: Replica, names: list[str], planted: list[Planted]) -> None:
    with replica.database.connect() as connection:
        for row, column, value in planted:
            statement = f"UPDATE types SET c{column} = %s::text::{names[column]} WHERE id = %s"
            connection.execute(statement.encode(), [value, row])


def check(replica: Replica) -> None:
    values = known_values(replica.captured.database, replica.database)
    create_table(replica, values)
    planted = insert_all(replica, values)
    replica.fill("types")
    report = replica.verify()
    assert equal(report, ["types"])
    assert table_report(report, "types").left_out == {}
    # Of 100 differences at a time the columns are told.
    for start in range(0, len(planted), 100):
        some = planted[start : start + 100]
        plant(replica, list(values), some)
        found = table_report(replica.verify(), "types").differences
        wanted = [Difference("different", (str(row),), (f"c{column}",)) for row, column, _ in some]
        missed = [(list(values)[column], row) for row, column, _ in some]
        missed = [name for name, one in zip(missed, wanted, strict=True) if one not in found]
        assert not missed
        assert len(found) == len(wanted)
        replica.fill("types")


def test_every_type(replica: Replica) -> None:
    check(replica)


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.parametrize(("source", "target"), [(14, 18), (18, 14), (16, 17)])
def test_other_releases(
    source: int, target: int, make_server: MakeServer, make_captured: MakeCaptured
) -> None:
    programs = [binaries(version) for version in (source, target)]
    databases = [Database.create(make_server(place)) for place in programs]
    check(Replica(make_captured(databases[0]), databases[1]))
