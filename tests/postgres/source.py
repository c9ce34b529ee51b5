"""A prepared source: ``init`` ran on a test's database, and its DDL messages can be read."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

from pgtide.config import Config
from pgtide.postgres import setup
from pgtide.postgres.connection import connect
from pgtide.postgres.ddl_trigger import PREFIX, read_key
from pgtide.postgres.setup import InitResult
from tests.fixtures.databases import Database


def make_config(database: Database, **source: Any) -> Config:
    """A configuration for this database, its slot named after it."""
    settings = {"url": database.url, "slot": database.name, **source}
    return Config.model_validate({"source": settings, "log": {"path": str(Path("unused"))}})


class PreparedSource:
    """A database after ``init``, with a reader of its slot."""

    def __init__(self, database: Database, **source: Any) -> None:
        self.database = database
        self.config = make_config(database, **source)
        self.result: InitResult = setup.init(self.config)

    def execute(self, query: str) -> list[tuple[Any, ...]]:
        return self.database.execute(query)

    def contents(self) -> list[bytes]:
        """The contents of the DDL messages since the last call, as they came."""
        with self.database.connect() as conn:
            rows = conn.execute(
                "SELECT data FROM pg_logical_slot_get_binary_changes(%(slot)s::name, NULL, NULL,"
                " 'proto_version', '1', 'publication_names', %(slot)s::text, 'messages', 'true')",
                {"slot": self.config.source.slot},
            ).fetchall()
        messages = [_message(data) for (data,) in rows if data[:1] == b"M"]
        return [content for prefix, content in messages if prefix == PREFIX]

    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of the correctly signed ones."""
        with connect(self.database.url) as conn:
            key = read_key(conn)
        assert key is not None
        found = [verified_body(key, content) for content in self.contents()]
        return [json.loads(body) for body in found if body is not None]

    def ddl(self, query: str) -> list[dict[str, Any]]:
        """Run a query string and return the messages it caused."""
        self.bodies()
        self.execute(query)
        return self.bodies()

    def one(self, query: str) -> dict[str, Any]:
        """The only message of a query string."""
        (body,) = self.ddl(query)
        return body


def tables(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The relations that a message describes, by name."""
    return {item["name"]: item for item in body["objects"] if "columns" in item}


def _message(data: bytes) -> tuple[str, bytes]:
    # Byte 'M', flags, LSN; then prefix, length and content.
    end = data.index(b"\0", 10)
    (length,) = struct.unpack_from(">I", data, end + 1)
    return data[10:end].decode(), data[end + 5 : end + 5 + length]


def verified_body(key: bytes, content: bytes) -> bytes | None:
    """The JSON body of a message whose signature is right; None for every other."""
    signature, separator, body = content.partition(b"\n")
    expected = hmac.new(key, body, hashlib.sha256).hexdigest().encode()
    return body if separator and hmac.compare_digest(signature, expected) else None


CATALOGS = {
    "pg_namespace": "nspname, nspacl::text",
    "pg_class": "relname, relkind, relreplident, relacl::text",
    "pg_proc": "proname, pronargs",
    "pg_event_trigger": "evtname",
    "pg_publication": "pubname",
    "pg_publication_rel": "prrelid",
    "pg_type": "typname",
    "pg_constraint": "conname",
    "pg_default_acl": "defaclacl::text",
    "pg_trigger": "tgname",
    "pg_seclabel": "label",
    "pg_description": "description",
}


def catalog(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that could be left behind, slots of this database included."""
    found = {
        name: database.execute(
            f"SELECT {columns} FROM {name} ORDER BY 1, 2"
            if "," in columns
            else f"SELECT {columns} FROM {name} ORDER BY 1"
        )
        for name, columns in CATALOGS.items()
    }
    found["slots"] = database.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    )
    return found


def script_of(result: InitResult) -> str:
    """What ``init --dry-run`` prints of its steps."""
    return "\n".join(step.script() for step in result.steps)
