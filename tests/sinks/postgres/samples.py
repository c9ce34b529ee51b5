"""Values of every type that Postgres comes with, as texts: edges, and what is easily lost."""

from __future__ import annotations

from typing import Any

from tests.fixtures.databases import Database

# What no SQL can write into a column.
_INTERNAL = {
    *("gtsvector", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "pg_dependencies"),
    *("pg_mcv_list", "pg_ndistinct", "pg_node_tree"),
}
# All but pseudo-types, rows of the catalog's own tables, and arrays of others.
_TYPES = """
SELECT typname FROM pg_type t WHERE typnamespace = 'pg_catalog'::regnamespace
  AND typtype NOT IN ('p', 'c') AND NOT EXISTS (SELECT FROM pg_type WHERE typarray = t.oid)
  AND oid < 16384 ORDER BY 1
"""
SAMPLES: dict[str, list[str]] = {
    "aclitem": ["=r/{user}", "{user}=arwdDxt*/{user}"],
    "bit": ["1", "0"],
    "bool": ["t", "f"],
    "box": ["(2,2),(-1.5,-0)", "(1e300,0),(0,0)"],
    "bpchar": ["a  ", "", "\t"],
    "bytea": ["\\x", "\\x00ff5c0a", "\\x5c4e"],
    "char": ["", "\\377", "x"],
    "cid": ["0", "4294967295"],
    "cidr": ["10.0.0.0/8", "::/0", "2001:db8::1/128"],
    "circle": ["<(1,-2),0>", "<(1e-300,0),1e300>"],
    "date": ["4713-01-01 BC", "5874897-12-31", "-infinity", "infinity"],
    "datemultirange": ["{}", "{(,2000-01-01),[2001-02-03,infinity)}"],
    "daterange": ["empty", "[2000-01-01,)", "(,)", "[-infinity,infinity]"],
    "float4": ["NaN", "-0", "1e-45", "3.4028235e38", "-Infinity"],
    "float8": ["NaN", "-0", "5e-324", "1.7976931348623157e308", "0.1", "Infinity"],
    "inet": ["::1/64", "0.0.0.0", "255.255.255.255/0", "::ffff:1.2.3.4"],
    "int2": ["-32768", "32767"],
    "int2vector": ["", "1 -2 32767"],
    "int4": ["-2147483648", "2147483647"],
    "int4multirange": ["{}", "{[1,3),[7,)}"],
    "int4range": ["empty", "[1,5)", "(,)"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "int8multirange": ["{(,)}", "{[1,3)}"],
    "int8range": ["empty", "[,9223372036854775807)"],
    "interval": [
        "-178000000 years",
        "1 year 2 mons -3 days 04:05:06.789012",
        "-1 mons +1 day -00:00:00.000001",
        "00:00:00",
    ],
    "json": ['{"a": 1, "a": 2.0}', "null", ' [1e400, "\\u0041\\n"] ', '"\\\\N"'],
    "jsonb": ['{"a": 1.00, "b": [null, 1e400]}', "null", '"\\\\ \\t \\" \\u00fc"', "-0.0"],
    "jsonpath": ['$."a b"[*] ? (@ > 1)', 'strict $.x like_regex "^\\\\d"'],
    "line": ["{1,-1,0}", "{0,1,-1e300}"],
    "lseg": ["[(0,0),(1,-0)]"],
    "macaddr": ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "money": ["-92233720368547758.08", "92233720368547758.07"],
    "name": ["", "ü" * 31, 'a"b\\c'],
    "numeric": ["NaN", "Infinity", "-Infinity", "0.00", "1e-1000", "9" * 200, "-1.10"],
    "nummultirange": ["{[-Infinity,1.10),(2.000,Infinity]}"],
    "numrange": ["(1.10,1.1000000)", "[0.00,NaN]", "empty"],
    "oid": ["0", "4294967295"],
    "oidvector": ["4294967295 0", ""],
    "path": ["[(0,0),(1,1)]", "((0,0),(1,1),(2,0))"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
    "pg_snapshot": ["10:20:10,14,15", "1:1:"],
    "point": ["(1.5,-0)", "(NaN,Infinity)"],
    "polygon": ["((0,0),(1,1),(2,0))", "((0,0))"],
    "refcursor": ["c", "a\tb\\"],
    "regclass": ["pg_catalog.pg_class"],
    "regcollation": ['"C"'],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "regnamespace": ["pg_catalog"],
    "regoper": ["pg_catalog.||/"],
    "regoperator": ["+(integer,integer)"],
    "regproc": ["pg_catalog.now"],
    "regprocedure": ["pg_catalog.now()"],
    "regrole": ["{user}"],
    "regtype": ["integer", "timestamp with time zone[]"],
    "text": ["", "\\N", "\\.", "a\tb\nc\rd\\e\x0bf\x7f", "NULL", "ü€𝄞\u2028\u0085", " \\t "],
    "tid": ["(0,0)", "(4294967295,65535)"],
    "time": ["24:00:00", "00:00:00.000001"],
    "timestamp": ["4714-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999", "-infinity"],
    "timestamptz": ["0044-03-15 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00", "infinity"],
    "timetz": ["24:00:00-15:59", "00:00:00.1+15:59:59"],
    "tsmultirange": ["{[2000-01-01,2000-01-02),(2001-01-01,infinity)}"],
    "tsquery": ["'a' & !'b':*A | 'it''s'", "'a' <-> 'b'", ""],
    "tsrange": ['["2000-01-01 00:00:00.000001",)', "empty"],
    "tstzmultirange": ["{[2000-01-01 00:00+05,2001-01-01 00:00+00)}"],
    "tstzrange": ["[-infinity,infinity]", "(,2000-01-01 00:00+00]"],
    "tsvector": ["'a':1A,2 'b''c':3", "", "'\\\\':1"],
    "txid_snapshot": ["10:20:10,14,15"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "varbit": ["", "1011"],
    "varchar": ["", " x ", "\\"],
    "xid": ["0", "4294967295"],
    "xid8": ["0", "18446744073709551615"],
    "xml": ['<?xml version="1.0"?><a b="&lt;">\t</a>', "no <b>document</b>"],
}


def sampled_types(database: Database) -> list[str]:
    """The types that this server knows and can write: there must be samples of all of them."""
    found = {name for (name,) in database.execute(_TYPES)} - _INTERNAL
    assert found <= SAMPLES.keys(), found - SAMPLES.keys()
    (libxml,) = database.execute("SELECT count(*) FROM pg_config() WHERE setting ~ 'with-libxml'")[
        0
    ]
    return sorted(found if libxml else found - {"xml"})


def write_samples(database: Database, table: str) -> None:
    """A row for each sample, with all of them as an array; one of NULLs, one of odd arrays."""
    user = database.execute("SELECT current_user")[0][0]
    types = sampled_types(database)
    texts = {name: [text.replace("{user}", user) for text in SAMPLES[name]] for name in types}
    columns = [f'"{name}" pg_catalog."{name}", "{name}s" pg_catalog."{name}"[]' for name in types]
    database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, {', '.join(columns)})")
    database.execute(f"INSERT INTO {table} VALUES (0)")
    values = ", ".join(
        f'%s::text::pg_catalog."{name}", %s::text[]::pg_catalog."{name}"[]' for name in types
    )
    with database.connect() as connection:
        for number in range(max(map(len, texts.values()))):
            row: list[Any] = [number + 1]
            for name in types:
                mine = texts[name]
                row += [mine[number] if number < len(mine) else None, [None, *mine[: number + 1]]]
            connection.execute(f"INSERT INTO {table} VALUES (%s, {values})".encode(), row)
    odd = ", ".join("NULL, '[-1:-1][5:5]={{NULL}}'" for _ in types)
    database.execute(f"INSERT INTO {table} VALUES (100, {odd})")
