"""A DDL payload of the log, asked for what replaying it needs (docs/LOG_FORMAT.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pgtide.postgres.names import listed_names

TableName: TypeAlias = tuple[str, str]
Item: TypeAlias = Mapping[str, Any]

TABLES = frozenset({"r", "p"})
RELATIONS = frozenset({"r", "p", "f", "v", "m"})
RELATION_TYPES = frozenset({"table", "foreign table", "view", "materialized view"})

_IDENTIFIER = re.compile(r'"((?:[^"]|"")*)"|[^\s",.()]+')


@dataclass(frozen=True, slots=True)
class Payload:
    """The facts of one command."""

    facts: Mapping[str, Any]

    @property
    def tag(self) -> str:
        return str(self.facts.get("tag") or "")

    @property
    def statement(self) -> str | None:
        """Its text; None when that is not known, or not all of it."""
        known = not (self.facts.get("unknown") or self.facts.get("redacted"))
        return self.facts.get("statement") if known else None

    @property
    def objects(self) -> Sequence[Item]:
        return self.facts.get("objects") or ()

    @property
    def dropped(self) -> Sequence[Item]:
        return self.facts.get("dropped") or ()

    @property
    def marks(self) -> Mapping[str, Any]:
        return self.facts.get("marks") or {}

    @property
    def search_path(self) -> list[str]:
        """Schemas in which names without one were looked up; ``$user`` is the role that ran it."""
        names = listed_names(str(self.facts.get("search_path") or ""))
        user = str(self.facts.get("user") or "")
        return [user if name == "$user" else name for name in names if name != "$user" or user]

    def relations(self) -> Iterator[Item]:
        """Tables, views and the like that were made or changed, as they are behind it."""
        return (item for item in self.objects if item.get("kind") in RELATIONS)

    def listed(self) -> Iterator[Item]:
        """Those that the statement itself is about."""
        return (item for item in self.relations() if item.get("listed", True))

    def dropped_relations(self) -> Iterator[Item]:
        return (item for item in self.dropped if item["type"] in RELATION_TYPES)

    def made_schema(self) -> str:
        """The schema that was made or changed, if it was one."""
        return self._made("schema")

    def made_index(self) -> str:
        """The index that was made or changed, without its schema, if it was one."""
        return self._made("index")

    def _made(self, kind: str) -> str:
        mine = (o for o in self.objects if o["type"] == kind and o.get("listed", True))
        return next((identifiers(o["identity"])[-1] for o in mine), "")

    def schemas_of(self, name: str) -> list[str]:
        """Where a relation without schema in the statement can be."""
        found = {
            str(item["schema"])
            for item in (*self.relations(), *self.dropped_relations())
            if item.get("name") == name
        }
        return sorted(found) or self.search_path


def name_of(item: Item) -> TableName:
    """Schema and name of a relation."""
    return str(item["schema"]), str(item["name"])


def root_of(item: Item) -> TableName:
    """Schema and name of the topmost partitioned table, or of the relation itself."""
    root = item.get("root")
    return (str(root["schema"]), str(root["table"])) if root else name_of(item)


def identifiers(text: str) -> list[str]:
    """The names in a list or an object's identity, without their quotes."""
    return [
        match[1].replace('""', '"') if match[1] is not None else match[0]
        for match in _IDENTIFIER.finditer(text)
    ]


def quoted(*names: str) -> str:
    """A name as SQL, with dots in between."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
