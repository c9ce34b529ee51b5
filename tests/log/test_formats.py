"""The shapes of other systems, field for field."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pgtide.errors import ConfigError
from pgtide.log.event import UNCHANGED, Event
from pgtide.log.formats import NAMES, formatter
from pgtide.log.formats.debezium_values import convert
from pgtide.log.formats.texts import parse_array
from pgtide.log.source import LogSource
from pgtide.position import Lsn, Position
from pgtide.shape import Column, Shape

NOW = datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC)
SOURCE = LogSource("7300000000000000001", "shop", "pgtide")
SHAPE = Shape(
    oid=16400,
    schema="public",
    table="orders",
    columns=(
        Column("id", 20, type_name="bigint", attnum=1, nullable=False, key=True, identity=True),
        Column("total", 1700, 655366, "numeric(10,2)", attnum=2),
        Column("paid", 16, type_name="boolean", attnum=3),
        Column("body", 25, type_name="text", attnum=4),
        Column("made", 1184, type_name="timestamp with time zone", attnum=5),
    ),
    id=4,
)
UPDATE = Event(
    position=Position(Lsn(0x15A5D58), 3),
    xid=771,
    committed_at=datetime(2026, 3, 1, 12, 0, 0, 250000, tzinfo=UTC),
    op="update",
    schema="public",
    table="orders",
    shape=SHAPE,
    before=None,
    after={
        "id": "9007199254740993",
        "total": "12.50",
        "paid": "t",
        "body": UNCHANGED,
        "made": "2026-03-01 11:59:59.5+00",
    },
    payload=None,
    last=True,
)
DELETE = replace(UPDATE, op="delete", before={"id": "1"}, after=None)
TRUNCATE = replace(UPDATE, op="truncate", after=None)
DDL = replace(
    UPDATE,
    op="ddl",
    shape=None,
    after=None,
    payload={
        "tag": "ALTER TABLE",
        "statement": "ALTER TABLE orders ADD COLUMN x int",
        "query": None,
        "statement_at": "2026-03-01T12:00:00+00:00",
        "objects": [
            {
                "type": "table",
                "schema": "public",
                "identity": "public.orders",
                "oid": 16400,
                "primary_key": ["id"],
                "columns": [
                    {
                        "attnum": 1,
                        "name": "id",
                        "type": "integer",
                        "type_oid": 23,
                        "nullable": False,
                        "default": None,
                        "generated": "",
                        "identity": "a",
                    }
                ],
            }
        ],
        "dropped": [],
    },
)
MESSAGE = replace(
    UPDATE,
    op="message",
    schema=None,
    table=None,
    shape=None,
    after=None,
    payload={"prefix": "app", "transactional": True, "content": "hello"},
)
SWEEP = replace(MESSAGE, op="sweep", payload={"from": "0/1"})
READ = replace(UPDATE, op="read")


def _format(name: str, event: Event) -> dict[str, Any]:
    shaped = formatter(name)(event, SOURCE, NOW)
    return dict(json.loads(json.dumps(shaped, allow_nan=False)))


def test_native() -> None:
    assert _format("native", UPDATE) == {
        "position": "0/15A5D58:3",
        "lsn": "0/15A5D58",
        "seq": 3,
        "xid": 771,
        "committed_at": "2026-03-01T12:00:00.250000+00:00",
        "op": "update",
        "schema": "public",
        "table": "orders",
        "shape": 4,
        "before": None,
        "after": {
            "id": "9007199254740993",
            "total": "12.50",
            "paid": "t",
            "made": "2026-03-01 11:59:59.5+00",
        },
        "unchanged": ["body"],
        "payload": None,
        "last": True,
    }


def test_debezium_envelope() -> None:
    envelope = _format("debezium", UPDATE)
    names = "before after source transaction op ts_ms ts_us ts_ns"
    assert " ".join(envelope) == names
    assert envelope["op"] == "u"
    assert envelope["ts_ms"] == 1772366401000
    assert envelope["before"] is None
    assert envelope["after"] == {
        "id": 9007199254740993,
        "total": "BOI=",
        "paid": True,
        "body": "__debezium_unavailable_value",
        "made": "2026-03-01T11:59:59.500000Z",
    }
    assert list(envelope["source"].items()) == [
        ("version", "0.1.0"),
        ("connector", "postgresql"),
        ("name", "pgtide"),
        ("ts_ms", 1772366400250),
        ("snapshot", "false"),
        ("db", "shop"),
        ("sequence", '[null,"22699352"]'),
        ("ts_us", 1772366400250000),
        ("ts_ns", 1772366400250000000),
        ("schema", "public"),
        ("table", "orders"),
        ("txId", 771),
        ("lsn", 0x15A5D58),
        ("xmin", None),
        ("origin", None),
        ("origin_lsn", None),
    ]


def test_debezium_other_operations() -> None:
    assert _format("debezium", DELETE)["before"] == {"id": 1}
    assert _format("debezium", DELETE)["after"] is None
    assert "before" not in _format("debezium", TRUNCATE)
    assert _format("debezium", TRUNCATE)["op"] == "t"
    assert _format("debezium", READ)["op"] == "r"
    assert _format("debezium", READ)["source"]["snapshot"] == "incremental"
    first = replace(SOURCE, snapshot=int(READ.position.lsn) + 1)
    told = formatter("debezium")(READ, first, NOW)
    assert (told["op"], told["source"]["snapshot"]) == ("r", "true")
    message = _format("debezium", MESSAGE)
    assert message["message"] == {"prefix": "app", "content": base64.b64encode(b"hello").decode()}
    assert (message["op"], message["source"]["schema"]) == ("m", "")
    ddl = _format("debezium", DDL)["message"]
    assert ddl["prefix"] == "pgtide.ddl"
    assert json.loads(base64.b64decode(ddl["content"]))["tag"] == "ALTER TABLE"


@pytest.mark.parametrize(
    ("text", "oid", "typmod", "expected"),
    [
        ("t", 16, -1, True),
        ("-9223372036854775808", 20, -1, -9223372036854775808),
        ("0.1", 701, -1, 0.1),
        ("NaN", 701, -1, "NaN"),
        ("-0.05", 1700, 655366, "+w=="),
        ("128.00", 1700, 655366, "MgA="),
        ("0.00", 1700, 655366, "AA=="),
        ("12.345", 1700, -1, {"scale": 3, "value": "MDk="}),
        ("NaN", 1700, -1, "NaN"),
        (
            "-$1,234.56",
            790,
            -1,
            base64.b64encode((-123456).to_bytes(3, "big", signed=True)).decode(),
        ),
        ("\\xdead", 17, -1, "3q0="),
        ("1970-01-02", 1082, -1, 1),
        ("0001-01-01 BC", 1082, -1, -719528),
        ("infinity", 1082, -1, "infinity"),
        ("00:00:01.5", 1083, -1, 1500000),
        ("00:00:01.5", 1083, 3, 1500),
        ("1970-01-01 00:00:01", 1114, -1, 1000000),
        ("1970-01-01 00:00:01", 1114, 3, 1000),
        ("294276-12-31 23:59:59.999999", 1114, -1, 9224318015999999999),
        ("infinity", 1114, -1, 9223372036825200000),
        ("-infinity", 1114, -1, -9223372036832400000),
        ("2026-03-01 11:59:59.5+00", 1184, -1, "2026-03-01T11:59:59.500000Z"),
        ("2026-03-01 11:59:59+00", 1184, 0, "2026-03-01T11:59:59Z"),
        ("01:30:00+02", 1266, -1, "23:30:00Z"),
        (
            "1 year 2 mons -3 days -00:00:01",
            1186,
            -1,
            14 * 2629800000000 - 3 * 86400000000 - 1000000,
        ),
        ("1", 1560, 1, True),
        ("100000001", 1560, 9, base64.b64encode(b"\x01\x01").decode()),
        ("{1,NULL,3}", 1007, -1, [1, None, 3]),
        ('{"a b",c,"d\\"e",NULL,"NULL"}', 1009, -1, ["a b", "c", 'd"e', None, "NULL"]),
        ("{{1,2},{3,4}}", 1007, -1, "{{1,2},{3,4}}"),
        ("[0:1]={1,2}", 1007, -1, "[0:1]={1,2}"),
        ("{}", 1007, -1, []),
        ('{"a": 1}', 3802, -1, '{"a": 1}'),
        ("anything", 99999, -1, "anything"),
    ],
)
def test_debezium_values(text: str, oid: int, typmod: int, expected: Any) -> None:
    assert convert(text, oid, typmod) == expected


def test_debezium_point() -> None:
    point = convert("(1,-2.5)", 600, -1)
    assert (point["x"], point["y"], point["srid"]) == (1.0, -2.5, None)
    assert len(base64.b64decode(point["wkb"])) == 21


def test_arrays_with_braces_in_quotes() -> None:
    assert parse_array('{"{x}","a,b",""}') == ["{x}", "a,b", ""]


def test_pgstream() -> None:
    assert _format("pgstream", UPDATE) == {
        "action": "U",
        "timestamp": "2026-03-01 12:00:00.25+00",
        "lsn": "0/15A5D58",
        "schema": "public",
        "table": "orders",
        "columns": [
            {"id": "16400-1", "name": "id", "type": "bigint", "value": 9007199254740993},
            {"id": "16400-2", "name": "total", "type": "numeric(10,2)", "value": 12.5},
            {"id": "16400-3", "name": "paid", "type": "boolean", "value": True},
            {
                "id": "16400-5",
                "name": "made",
                "type": "timestamp with time zone",
                "value": "2026-03-01 11:59:59.5+00",
            },
        ],
        "identity": [{"id": "16400-1", "name": "id", "type": "bigint", "value": 9007199254740993}],
        "metadata": {
            "schema_id": None,
            "table_pgstream_id": "16400",
            "id_col_pgstream_id": ["16400-1"],
        },
        "xid": 771,
    }
    delete = _format("pgstream", DELETE)
    assert delete["columns"] is None
    assert [column["value"] for column in delete["identity"]] == [1]
    assert (_format("pgstream", READ)["action"], _format("pgstream", READ)["lsn"]) == ("I", "0/0")
    message = _format("pgstream", MESSAGE)
    assert (message["action"], message["prefix"], message["content"]) == ("M", "app", "hello")


def test_pgstream_numbers_are_never_rounded() -> None:
    after = {**(UPDATE.after or {}), "total": "0.1000000000000000055511151231257827"}
    columns = _format("pgstream", replace(UPDATE, after=after))["columns"]
    assert columns[1]["value"] == "0.1000000000000000055511151231257827"


def test_pgstream_ddl() -> None:
    ddl = _format("pgstream", DDL)
    assert (ddl["action"], ddl["prefix"]) == ("M", "pgstream.ddl")
    assert json.loads(ddl["content"]) == {
        "ddl": "ALTER TABLE orders ADD COLUMN x int",
        "schema_name": "public",
        "command_tag": "ALTER TABLE",
        "objects": [
            {
                "type": "table",
                "identity": "public.orders",
                "schema": "public",
                "oid": 16400,
                "columns": [
                    {
                        "attnum": 1,
                        "name": "id",
                        "type": "integer",
                        "nullable": False,
                        "default": None,
                        "generated": False,
                        "identity": "ALWAYS",
                    }
                ],
                "primary_key_columns": ["id"],
            }
        ],
    }


def test_pgstream_ddl_names_what_was_dropped_and_not_what_went_with_it() -> None:
    table = {"type": "table", "schema": "public", "identity": "public.orders", "oid": 16400}
    row_type = {**table, "type": "type", "oid": 16402, "original": False}
    payload: dict[str, Any] = {"tag": "DROP TABLE", "statement": "DROP TABLE orders"}
    payload["dropped"] = [{**table, "original": True}, row_type]
    ddl = _format("pgstream", replace(DDL, payload=payload))
    assert json.loads(ddl["content"])["objects"] == [table]


def test_pg_flo() -> None:
    assert _format("pg_flo", UPDATE) == {
        "Type": "UPDATE",
        "Schema": "public",
        "Table": "orders",
        "ReplicationKey": {"Type": "PRIMARY KEY", "Columns": ["id"]},
        "LSN": "0/15A5D58",
        "EmittedAt": "2026-03-01T12:00:01Z",
        "NewTuple": {
            "id": 9007199254740993,
            "total": "12.50",
            "paid": True,
            "made": "2026-03-01T11:59:59.5Z",
        },
    }
    delete = _format("pg_flo", DELETE)
    assert delete["OldTuple"] == {"id": 1}
    assert "NewTuple" not in delete
    ddl = _format("pg_flo", DDL)
    assert ddl["Type"] == "DDL"
    assert ddl["NewTuple"]["ddl_command"] == "ALTER TABLE orders ADD COLUMN x int"
    assert _format("pg_flo", MESSAGE)["NewTuple"]["prefix"] == "app"
    full = replace(SHAPE, replica_identity="f")
    assert _format("pg_flo", replace(UPDATE, shape=full))["ReplicationKey"]["Type"] == "FULL"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("event", [UPDATE, DELETE, TRUNCATE, DDL, MESSAGE, SWEEP, READ])
def test_every_event_has_a_form_in_every_format(name: str, event: Event) -> None:
    assert _format(name, event)
    assert _format(name, replace(event, committed_at=None, xid=None))


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        formatter("avro")
    assert "debezium" in caught.value.hint


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (1700, "9" * 5_000),
        (600, "(Infinity,NaN)"),
        (3802, "[" * 3_000 + "]" * 3_000),
        (3802, "1" * 5_000),
    ],
    ids=["long_numeric", "infinite_point", "deep_json", "long_json_number"],
)
def test_no_value_is_too_much_for_a_format(name: str, oid: int, text: str) -> None:
    shape = Shape(1, "public", "t", (Column("v", oid, identity=True),))
    event = Event(
        Position(Lsn(8)), 1, datetime(2026, 1, 1, tzinfo=UTC), "insert", "public", "t", shape,
        None, {"v": text}, None, True,
    )  # fmt: skip
    json.dumps(_format(name, event), allow_nan=False)
