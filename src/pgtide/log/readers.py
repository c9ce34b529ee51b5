"""Named readers of a log and how far each has come: ``<log>/readers/<name>.json``.

Retention and clean-up stop at the slowest of them, so whoever registers must move on or
be forgotten. A reader's file says: rows before (``lsn``, ``seq``) are done, and the reader
may still need what the Delta log says about ``version`` and later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from pgtide.errors import ConfigError
from pgtide.log.files import delete, walk
from pgtide.log.own_files import understood
from pgtide.log.schema import READERS
from pgtide.log.storage import Storage
from pgtide.position import Lsn, Position

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class Reader:
    """How far a named reader has come."""

    name: str
    version: int  # Delta version that it has read to the end
    position: Position  # the first position that it has not done
    updated_at: datetime


def update_reader(log: Storage, name: str, version: int, position: Position) -> None:
    """Register a reader, or move it; whole and durable or not at all."""
    content = {
        "version": version,
        "lsn": int(position.lsn),
        "seq": position.seq,
        "updated_at": datetime.now(UTC).isoformat(),
    }
    log.replace(_path(name), json.dumps(content).encode())


def list_readers(log: Storage) -> list[Reader]:
    """All registered readers, by name."""
    readers = []
    for entry in walk(log, READERS):
        if not entry.path.endswith(".json"):
            continue  # half of an atomic replacement
        content = log.read(entry.path)
        if content is not None:  # forgotten while we looked
            readers.append(_reader(entry.path, content))
    return sorted(readers, key=lambda reader: reader.name)


def forget_reader(log: Storage, name: str) -> None:
    """Remove a reader: nothing is kept for it any longer."""
    delete(log, _path(name))


def slowest(readers: Iterable[Reader]) -> tuple[int, Position] | None:
    """The smallest version and the smallest position among the readers, None without any."""
    known = list(readers)
    if not known:
        return None
    return min(r.version for r in known), min(r.position for r in known)


def _path(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"invalid reader name {name!r}",
            hint="Use up to 100 letters, digits, '_', '-' and '.', a letter or digit first.",
        )
    return f"{READERS}/{name}.json"


def _reader(path: str, content: bytes) -> Reader:
    # Guessing "no reader" here would let retention delete what it still needs.
    hint = f"If that reader is gone for good, remove {path} from the log."
    with understood("a reader's file", path, hint=hint):
        fields = json.loads(content)
        return Reader(
            name=path.rsplit("/", 1)[-1].removesuffix(".json"),
            version=int(fields["version"]),
            position=Position(Lsn(fields["lsn"]), int(fields["seq"])),
            updated_at=datetime.fromisoformat(fields["updated_at"]),
        )
