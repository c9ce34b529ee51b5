"""Refreshes that were asked for, and how far each has come: ``<log>/refresh/``.

Whoever wants rows read again adds a request; the capture finds it, does it, and says how it
stands. Both survive a crash of anything. Each file has one writer:

* ``<id>.request.json``  what is wanted, written once by whoever asks;
* ``<id>.control.json``  ``run``, ``pause`` or ``cancel``, by whoever steers;
* ``<id>.standing.json`` state, cursor and counts, by the capture, after the log has the rows.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from pgtide.errors import ConfigError
from pgtide.log.files import delete, walk
from pgtide.log.own_files import understood
from pgtide.log.storage import Storage
from pgtide.position import Lsn

DIRECTORY = "refresh"
REQUEST_SUFFIX = ".request.json"
KEEP_ENDED = timedelta(days=7)

State: TypeAlias = Literal["queued", "running", "waiting", "paused", "done", "cancelled", "failed"]
Control: TypeAlias = Literal["run", "pause", "cancel"]
Reason: TypeAlias = Literal["asked", "ddl", "snapshot", "repair", "replay"]

ENDED = frozenset({"done", "cancelled", "failed"})
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")


def new_id() -> str:
    """A name for a request; names sort by the time they were made."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def id_of_ddl(lsn: Lsn, oid: int) -> str:
    """The name for what a transaction's DDL makes necessary, the same whoever asks, and when."""
    return f"ddl-{int(lsn):X}-{oid}"


@dataclass(frozen=True, slots=True)
class Refresh:
    """Rows that are to be read again: all of a table, or what one of the limits says."""

    table: str  # schema.table as the configuration writes it, when it was asked for
    id: str = field(default_factory=new_id)
    where: str | None = None  # an SQL condition
    keys: tuple[tuple[str, ...], ...] | None = None  # texts of the key columns
    low: str | None = None  # of the first key column, both included
    high: str | None = None
    replace: bool = False  # rows that only targets have are to go
    chunk_rows: int | None = None  # None: as configured
    max_rate: int | None = None  # rows a second
    oid: int | None = None  # of the table, whatever name it has by now; None: who has it then
    reason: Reason = "asked"
    requested_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def whole(self) -> bool:
        """Whether every row of the table is read."""
        return all(limit is None for limit in (self.where, self.keys, self.low, self.high))

    def is_of(self, table: str, oid: int) -> bool:
        """Whether it reads this table: two may have swapped their names since it was asked for."""
        return self.table == table if self.oid is None else self.oid == oid


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a refresh has come."""

    state: State = "queued"
    since: Lsn | None = None  # the log was here when it began
    until: Lsn | None = None  # the log had all of it here
    rows: int = 0
    chunks: int = 0
    dropped: int = 0  # rows that a newer change has overtaken
    total: int | None = None  # the table's rows, estimated
    place: tuple[str, ...] | None = None  # relation being read, then the last key that is done
    key: tuple[str, ...] | None = None  # which columns that key is of, and how they are ordered
    message: str = ""  # why it waits or failed
    updated_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class RefreshStore:
    """The requests of a log."""

    def __init__(self, log: Storage) -> None:
        self._log = log

    def add(self, request: Refresh) -> bool:
        """Ask for a refresh; one that exists under this id is left alone: then False."""
        if self._read(request.id, "request") is not None:
            return False
        self._write(request.id, "request", asdict(request))
        return True

    def get(self, id: str) -> Refresh:
        """A request by its id."""
        content = self._read(id, "request")
        if content is None:
            raise ConfigError(f"there is no refresh {id}", hint="Run: pgtide refresh --list")
        return _request(content)

    def requests(self) -> list[Refresh]:
        """All requests, oldest first; those that ended long ago are forgotten."""
        names = (entry.path.rsplit("/", 1)[-1] for entry in walk(self._log, DIRECTORY))
        # At its end: what goes on behind it is half of an atomic replacement, and no request yet.
        ids = [name.removesuffix(REQUEST_SUFFIX) for name in names if name.endswith(REQUEST_SUFFIX)]
        found = [_request(content) for id in ids if (content := self._read(id, "request"))]
        return sorted(found, key=lambda request: (request.requested_at, request.id))

    def standing(self, id: str) -> Standing:
        """How a request stands."""
        content = self._read(id, "standing")
        if content is None:
            return Standing()
        for name in ("since", "until"):
            content[name] = None if content[name] is None else Lsn(content[name])
        for name in ("place", "key"):
            content[name] = None if content.get(name) is None else tuple(content[name])
        content["updated_at"] = datetime.fromisoformat(content["updated_at"])
        return Standing(**content)

    def save(self, id: str, standing: Standing) -> None:
        """Say how a request stands."""
        self._write(id, "standing", asdict(replace(standing, updated_at=datetime.now(UTC))))

    def control(self, id: str) -> Control:
        """What somebody wants to become of a request."""
        content = self._read(id, "control")
        wanted: Control = content["wanted"] if content else "run"
        return wanted

    def steer(self, id: str, wanted: Control) -> None:
        """Pause, cancel or go on; of one that has ended, only to know no more of it."""
        request, state = self.get(id), self.standing(id).state
        if state in ENDED and wanted != "cancel":
            raise ConfigError(
                f"refresh {id} is {state} already",
                hint=f"Ask for it again: pgtide refresh {request.table}",
            )
        self._write(id, "control", {"wanted": wanted})

    def completing(self, table: str, oid: int) -> bool:
        """Whether all rows of a table are still being read: queued, or under way.

        While that is so, a row that a target does not have yet comes as a whole later.
        """
        return any(
            request.is_of(table, oid) and request.whole and self.is_open(request.id)
            for request in self.requests()
        )

    def is_open(self, id: str) -> bool:
        """Whether it is neither done, nor cancelled, nor failed."""
        return self.standing(id).state not in ENDED

    def forget_old(self) -> None:
        """Remove what ended long ago."""
        for request in self.requests():
            standing = self.standing(request.id)
            old = datetime.now(UTC) - standing.updated_at > KEEP_ENDED
            if standing.state in ENDED and old:
                for part in ("request", "control", "standing"):
                    delete(self._log, _path(request.id, part))

    def _read(self, id: str, part: str) -> dict[str, Any] | None:
        path = _path(id, part)
        content = self._log.read(path)
        if content is None:
            return None
        hint = f"Remove {path} from the log, then ask for the refresh again."
        with understood("the file of a refresh", path, hint=hint):
            fields: dict[str, Any] = json.loads(content)
            return fields

    def _write(self, id: str, part: str, fields: Mapping[str, Any]) -> None:
        content = json.dumps(fields, default=_plain)
        self._log.replace(_path(id, part), content.encode())


def _path(id: str, part: str) -> str:
    if not _ID.fullmatch(id):
        raise ConfigError(f"{id!r} is not the id of a refresh", hint="Run: pgtide refresh --list")
    return f"{DIRECTORY}/{id}.{part}.json"


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)


def _request(fields: dict[str, Any]) -> Refresh:
    if fields["keys"] is not None:
        fields["keys"] = tuple(tuple(key) for key in fields["keys"])
    fields["requested_at"] = datetime.fromisoformat(fields["requested_at"])
    return Refresh(**fields)
