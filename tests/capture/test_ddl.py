"""DDL messages: signatures, payload, layouts, secrets."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
import time
import tracemalloc
from typing import Any

import pytest

from pgtide.capture.ddl import (
    MAX_TEXT_CHARS,
    DdlCommand,
    Forged,
    SigningKey,
    read_message,
)
from pgtide.capture.redact import redact
from pgtide.shape import Column

SECRET = bytes(range(64))
KEY = SigningKey.of(SECRET)
XID = 0xFFFF_FFFE
FRAME = "PL/pgSQL function pgtide.on_ddl_command_end() line 5 at GET DIAGNOSTICS"


def column(attnum: int, name: str, **facts: Any) -> dict[str, Any]:
    return {
        "attnum": attnum, "name": name, "type_oid": 23, "typmod": -1, "type": "integer",
        "nullable": True, "default": None, "generated": "", "identity": "", "missing": None,
    } | facts  # fmt: skip


TABLE: dict[str, Any] = {
    "type": "table",
    "schema": "app",
    "identity": 'app."T"',
    "name": "T",
    "oid": 16400,
    "command_tag": "CREATE TABLE",
    "listed": True,
    "kind": "r",
    "persistence": "p",
    "replica_identity": "d",
    "primary_key": [1],
    "identity_key": [],
    "root": None,
    "columns": [column(1, "id", nullable=False), column(3, "g", generated="s")],
}


def body(**changes: Any) -> dict[str, Any]:
    return {
        "v": 1, "xid": str((7 << 32) | XID), "pid": 1, "ordinal": 1, "top_ordinal": 1,
        "tag": "CREATE TABLE", "query": 'create table app."T" (id int primary key)',
        "context": FRAME, "statement_at": "2026-01-01T00:00:00+00:00", "search_path": "public",
        "user": "joe", "functions": [], "objects": [TABLE], "dropped": [], "rewrites": [],
        "identity_set": [],
    } | changes  # fmt: skip


def signed(fields: Any, key: SigningKey = KEY) -> bytes:
    text = json.dumps(fields).encode()
    return key.sign(text).encode() + b"\n" + text


def read(**changes: Any) -> DdlCommand:
    command = read_message(signed(body(**changes)), xid=XID, key=KEY)
    assert isinstance(command, DdlCommand)
    return command


def test_signature_is_hmac_sha256() -> None:
    assert KEY.sign(b"x") == hmac.new(SECRET, b"x", hashlib.sha256).hexdigest()


def test_key_is_never_printed() -> None:
    assert KEY.inner.hex()[:8] not in repr(KEY)
    assert repr(KEY.inner)[2:10] not in repr(KEY)


def test_pads_have_the_block_size() -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        SigningKey(b"short", b"short")


FORGERIES = {
    "empty": b"",
    "no_signature": b"\n" + json.dumps(body()).encode(),
    "not_hexadecimal": "ü".encode() + b"\n{}",
    "other_key": signed(body(), SigningKey.of(b"other")),
    "changed_body": signed(body()).replace(b"joe", b"eve"),
    "older_transaction": signed(body(xid=str((7 << 32) | (XID - 1)))),
}


@pytest.mark.parametrize("content", FORGERIES.values(), ids=FORGERIES.keys())
def test_forged(content: bytes) -> None:
    assert isinstance(read_message(content, xid=XID, key=KEY), Forged)


UNKNOWN = {
    "said_so": {"v": 1, "xid": str(XID), "unknown": True, "tag": "ALTER TABLE", "error": "XX000"},
    "newer_format": body(v=2),
    "field_missing": {"v": 1, "xid": str(XID), "tag": "ALTER TABLE"},
    "field_of_another_type": body(objects=None),
    "not_an_object": [1],
}


@pytest.mark.parametrize("fields", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_signed_but_unknown(fields: Any) -> None:
    command = read_message(signed(fields), xid=XID, key=KEY)
    assert isinstance(command, DdlCommand)
    assert command.unknown
    assert command.error
    assert not command.marks.complete
    assert command.payload().keys() == read().payload().keys()


def test_payload() -> None:
    command = read()
    payload = json.loads(json.dumps(command.payload()))
    assert payload["tag"] == "CREATE TABLE"
    assert payload["statement"] == 'create table app."T" (id int primary key)'
    assert payload["statement_source"] == "query"
    assert payload["query"] is None
    assert payload["objects"] == [TABLE]
    assert payload["marks"] == {
        "refresh": False, "reasons": [], "partition": None, "rows_first": False, "no_op": False,
        "complete": True,
    }  # fmt: skip
    assert not payload["unknown"]
    assert pickle.loads(pickle.dumps(command)) == command


def test_payload_of_an_unmatched_command_has_the_whole_string() -> None:
    payload = read(tag="ALTER TABLE", query="select f(), 'x'").payload()
    assert payload["statement"] is None
    assert payload["unmatched"]
    assert payload["query"] == "select f(), 'x'"
    assert not payload["marks"]["complete"]


@pytest.mark.parametrize("field", ["query", "context"])
def test_memory_is_bounded_for_a_string_of_any_length(field: str) -> None:
    text = f"create table t (c text default '{'x' * 2_000}'); " * 4_000
    content = signed(body(tag="CREATE TABLE", **{field: text}))
    tracemalloc.start()
    try:
        command = read_message(content, xid=XID, key=KEY)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(command, DdlCommand)
    assert (command.statement, len(command.query or "") <= MAX_TEXT_CHARS) == (None, True)
    assert command.unmatched == f"the query string is longer than {MAX_TEXT_CHARS} characters"
    # The body, the text in it, and not a tree of it: that costs twenty times as much and more.
    assert peak < 5 * len(content)


def test_layouts() -> None:
    (layout,) = read(objects=[TABLE, TABLE | {"type": "table column"}]).layouts
    assert (layout.oid, layout.name, layout.replica_identity) == (16400, "app.T", "d")
    assert layout.columns == (
        Column("id", 23, -1, "integer", 1, nullable=False, key=True, identity=True),
        Column("g", 23, -1, "integer", 3, generated=True),
    )


def test_layout_of_domains_and_arrays() -> None:
    facts = {"base_oid": 1231, "base_typmod": 655366, "element_oid": 1700}
    table = TABLE | {"columns": [TABLE["columns"][0] | facts, *TABLE["columns"][1:]]}
    (layout,) = read(objects=[table]).layouts
    first, second = layout.columns
    assert (first.base_oid, first.base_typmod, first.element_oid) == (1231, 655366, 1700)
    assert (second.base_oid, second.base_typmod, second.element_oid) == (0, -1, 0)


@pytest.mark.parametrize(
    ("replica_identity", "expected"),
    [("d", [True, False]), ("f", [True, True]), ("i", [False, True]), ("n", [False, False])],
)
def test_layout_identity(replica_identity: str, expected: list[bool]) -> None:
    table = TABLE | {"replica_identity": replica_identity, "identity_key": [3]}
    (layout,) = read(objects=[table]).layouts
    assert [column.identity for column in layout.columns] == expected


def test_layout_of_a_partition_names_its_root() -> None:
    root = {"oid": 5, "schema": "s", "table": "r"}
    (layout,) = read(objects=[TABLE | {"root": root}]).layouts
    assert (layout.root_oid, layout.root_schema, layout.root_table) == (5, "s", "r")


def test_roots_come_before_their_partitions() -> None:
    root = TABLE | {"oid": 16500, "kind": "p"}
    part = TABLE | {"root": {"oid": 16500, "schema": "app", "table": "T"}}
    assert [layout.oid for layout in read(objects=[part, root]).layouts] == [16500, 16400]


def test_only_tables_have_layouts() -> None:
    index = {"type": "index", "schema": "app", "identity": "app.i", "oid": 9, "listed": True}
    assert read(objects=[index, TABLE | {"kind": "v"}]).layouts == ()


@pytest.mark.parametrize(
    ("bits", "persistence", "reasons"),
    [(2, "p", ["rewrite: default"]), (4, "p", ["rewrite: type"]), (1, "p", ["set logged"]),
     (1, "u", []), (8, "p", []), (6, "p", ["rewrite: default", "rewrite: type"])],
)  # fmt: skip
def test_rewrites_are_marked(bits: int, persistence: str, reasons: list[str]) -> None:
    rewrite = {"oid": 16400, "schema": "app", "table": "T", "reason": bits, "reasons": []}
    table = TABLE | {"persistence": persistence}
    marks = read(objects=[table], rewrites=[rewrite]).payload()["marks"]
    assert marks["reasons"] == reasons
    assert marks["refresh"] == bool(reasons)


# Secrets -------------------------------------------------------------------------------------

SECRETS = [
    "create role r login password 's3cret'",
    "alter user r with encrypted password E's3c\\'ret' valid until 'infinity'",
    "ALTER ROLE r PASSWORD /* now */ 's3cret'",
    "create user mapping for x server y options (user 'bob', password 's3cret')",
    "alter user mapping for x server y options (set password 's3c', add \"sslpassword\" 's3c')",
    "create server s foreign data wrapper f options (host 'h', aws_secret_access_key 's3cret')",
    "create subscription s connection 'host=h password=s3cret dbname=d' publication p",
    "alter subscription s connection $$postgresql://u:s3cret@h/d$$",
    "select dblink_connect('host=h user=u password=s3cret')",
    "select dblink_connect('postgresql://u:s3cret@h/d')",
    "select dblink_connect('postgresql://h/d?user=u&password=s3cret&x=1')",
    "do $x$ begin create user mapping for a server b options (password 's3cret'); end $x$",
    "do $x$ begin execute 'alter role r password ''s3cret'''; end $x$",
    "create user mapping for x server y options (password 's3cret', broken 'x",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_taken_out(text: str) -> None:
    hidden = redact(text)
    assert "s3c" not in hidden
    assert "***" in hidden
    assert hidden.split()[0] == text.split()[0]


HARMLESS = [
    "create table u (password text default 'x', token text check (token <> 'y'))",
    "comment on column u.password is 'the password: bcrypt'",
    "create function f() returns bool language sql as $$ select password = 'x' from u $$",
    "create function f() returns bool language sql as 'select password = crypt(1) from u'",
    "create view v as select 'http://example.com:80/a@b', 'a = b'",
    "create table t (a text default 'é''\\', b text default U&'\\0441') -- ü",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_everything_else_stays(text: str) -> None:
    assert redact(text) == text


def test_message_with_a_secret() -> None:
    query = "create user mapping for x server y options (password 's3cret'); create table t()"
    mapping = {"type": "user mapping", "schema": None, "identity": "x on server y", "oid": 1}
    command = read(tag="CREATE USER MAPPING", query=query, objects=[mapping])
    assert command.statement == "create user mapping for x server y options (password '***')"
    assert command.redacted
    assert "s3cret" not in json.dumps(command.payload())
    assert "s3cret" not in json.dumps(read(tag="ALTER TYPE", query=query).payload())


@pytest.mark.parametrize(
    "literal",
    [
        "&".join(f"k{n}={n}" for n in range(60)) + " it''s",
        "password " + "a=" * 5_000 + " ''",
        "a" * 300_000,
        "x://" * 20_000,
    ],
    ids=["query_string", "equal_signs", "one_long_word", "many_schemes"],
)
def test_no_literal_takes_longer_than_its_length(literal: str) -> None:
    began = time.perf_counter()
    redact(f"COMMENT ON TABLE t IS '{literal}'")
    assert time.perf_counter() - began < 2.0
