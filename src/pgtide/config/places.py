"""Paths of the log and of sinks that must not meet.

Whatever else lies in the log's directory, or around it, may be taken for the log's or deleted
with it; a file sink takes every file below its path for its own; and pipelines into one lake
would take each other's tables for theirs. Paths are compared as they are after links, stores by
the parts of their addresses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from urllib.parse import unquote

from pgtide.config.sinks import DeltaSettings, FileSettings, SinkSettings
from pgtide.errors import ConfigError

_ALIASES = {"s3a": "s3", "s3n": "s3"}


@dataclass(frozen=True, slots=True)
class _Place:
    setting: str
    path: str
    kind: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The path from its root on, the same however it was written."""
        path = self.path
        if path.startswith("file://"):
            path = unquote(path.removeprefix("file://"))
        scheme, separator, rest = path.partition("://")
        if separator:
            scheme = _ALIASES.get(scheme.lower(), scheme.lower())
        else:
            scheme, rest = "", os.path.realpath(path)
        return scheme, *filter(None, rest.split("/"))

    def relation_to(self, other: _Place) -> str:
        """How it lies to another place; empty when each is on its own."""
        mine, theirs = self.parts, other.parts
        if mine == theirs:
            return "is"
        if mine[: len(theirs)] == theirs:
            return "is inside"
        return "is around" if theirs[: len(mine)] == mine else ""


def check_places(log: str, sinks: Mapping[str, SinkSettings]) -> None:
    """Refuse sinks that would write into the log, or among the files of another."""
    places = [
        _Place(f"pipelines.{name}.sink.path", sink.path, sink.type)
        for name, sink in sinks.items()
        if isinstance(sink, DeltaSettings | FileSettings)
    ]
    for place in places:
        if relation := place.relation_to(_Place("log.path", log, "log")):
            raise ConfigError(
                f"{place.setting} {relation} log.path",
                detail="Nothing but the log may be where the log is.",
                hint="give the sink a directory of its own, beside the log's",
            )
    for first, second in combinations(places, 2):
        relation = second.relation_to(first)
        files = (first.kind, second.kind).count("file")
        # A lake below a directory of files, or around it, has other names than they have.
        if (files == 2 and relation) or (files == 1 and relation == "is"):
            raise _too_near(
                second, relation, first, "A file sink takes the files below its path for its own."
            )
        if files == 0 and relation:
            raise _too_near(
                second, relation, first, "Two pipelines in one lake would take each other's tables."
            )


def _too_near(place: _Place, relation: str, other: _Place, reason: str) -> ConfigError:
    return ConfigError(
        f"{place.setting} {relation} {other.setting}",
        detail=reason,
        hint=f"give {place.setting} a directory of its own",
    )
