"""What a pipeline knows about itself: ``<log>/pipelines/<name>/state.json``.

The stream's own checkpoint is beside it, in ``stream``. The two belong together: deleting the
directory makes the pipeline a new one, with another incarnation, that reads the log from its
beginning; targets tell by position what they have. When only ``stream`` is gone, or the log no
longer has the version that it is at, the pipeline goes on at its position. Beside them are
``error.json``, why it last failed, until a batch succeeds; and ``resume/…``, one file for each
request to take parked tables up again.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyarrow import fs

from pgtide.errors import (
    ConfigError,
    LogDenied,
    LogUnavailable,
    PgtideError,
    PipelineError,
    TransientError,
)
from pgtide.log.files import delete, walk
from pgtide.log.storage import Storage, unavailable
from pgtide.position import Lsn, Position

PIPELINES = "pipelines"
# Of a state that is read: one that was edited by hand is refused, not half believed.
_KINDS = {
    "incarnation": str,
    **dict.fromkeys(("version", "chunks_done", "stream_batch", "batches", "rows"), int),
    **dict.fromkeys(("batch_rows", "resumed"), int),
    "stream_began": bool,
    "batch_seconds": int | float,
    **dict.fromkeys(("table_rows", "withheld", "skipped_writes"), dict),
    **dict.fromkeys(("parked", "left"), dict),
    "tables": list | None,
}
_NOTED = ("at", "type", "message", "detail", "hint", "transient")


@dataclass(frozen=True)
class Parked:
    """A table that failed, and where it has to go on."""

    position: Position
    message: str
    detail: str
    hint: str
    since: datetime


@dataclass
class Resuming:
    """Parked tables on their way back: what they have to catch up with, and how far they are."""

    tables: list[str]
    start: Position
    until: Position  # the pipeline's own position, which is not theirs
    chunks: list[Position]  # upper bounds; a repetition must cut as the first attempt did
    chunks_done: int = 0

    @property
    def position(self) -> Position:
        """The first position that is not done."""
        if not self.chunks_done:
            return self.start
        return min(self.chunks[self.chunks_done - 1].next, self.until)


@dataclass(frozen=True)
class Request:
    """Somebody asked for a parked table, or for all of them, to be resumed."""

    path: str
    table: str | None


@dataclass
class State:
    """How far a pipeline has come."""

    incarnation: str
    version: int  # of the log, when the pipeline began, or had to begin its stream again
    chunks: list[Position]  # the history, what that version held: upper bounds of its parts
    position: Position  # the first position that is not done
    chunks_done: int = 0
    stream_began: bool = False  # batches of the stream may have been written
    stream_batch: int = -1  # the last one that was delivered
    batches: int = 0
    rows: int = 0
    committed_at: datetime | None = None  # of the newest change that was delivered
    batch_at: datetime | None = None
    batch_rows: int = 0
    batch_seconds: float = 0.0
    table_rows: dict[str, int] = field(default_factory=dict)
    withheld: dict[str, int] = field(default_factory=dict)  # events left out, by table
    skipped_writes: dict[str, int] = field(default_factory=dict)  # that came again, by table
    parked: dict[str, Parked] = field(default_factory=dict)
    resuming: Resuming | None = None
    resumed: int = 0  # how often parked tables were resumed
    tables: list[str] | None = None  # patterns of what is delivered; None: an old state, unknown
    # Where tables have to go on that are not selected any more, if only that tells what they have.
    left: dict[str, Position] = field(default_factory=dict)

    @classmethod
    def new(
        cls,
        version: int,
        start: Position,
        chunks: list[Position],
        tables: list[str] | None = None,
    ) -> State:
        """A pipeline that has done nothing."""
        return cls(secrets.token_hex(8), version, chunks, start, tables=tables)

    def begin_again(self, version: int, chunks: list[Position]) -> None:
        """Go on at the position with another history, then another stream."""
        self.version, self.chunks, self.chunks_done = version, chunks, 0
        self.stream_began, self.stream_batch = False, -1

    @property
    def resumption(self) -> str:
        """The name of what brings parked tables back: a target may note its progress under it."""
        return f"{self.incarnation}/resume{self.resumed}"

    def end_resuming(self) -> None:
        """Those tables are done, or given up; the next have another resumption."""
        self.resuming = None
        self.resumed += 1

    @property
    def boundary(self) -> Lsn:
        """The end of the history: the stream takes what is after it."""
        return self.chunks[-1].lsn if self.chunks else Lsn(max(self.position.lsn - 1, 0))


class StateFile:
    """The state on disk; every change is whole and durable."""

    def __init__(self, log: Storage, pipeline: str) -> None:
        self._log = log
        self._name = pipeline
        self._directory = f"{PIPELINES}/{pipeline}"

    @property
    def stream(self) -> Storage:
        """Where Spark keeps the stream's checkpoint."""
        return self._log.child(f"{self._directory}/stream")

    def load(self) -> State | None:
        """The state, None for a pipeline that never ran."""
        content = self._log.read(f"{self._directory}/state.json")
        if content is None:
            return None
        try:
            return _state(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as exc:
            raise PipelineError(
                "the pipeline's state cannot be understood",
                detail=f"{self._directory}/state.json in the log is not what pgtide writes.",
                hint=f"Restore it, or start over: pgtide replay --pipeline {self._name}",
            ) from exc

    @property
    def exists(self) -> bool:
        """Whether there is a state, be it one that cannot be read."""
        try:
            return self._log.read(f"{self._directory}/state.json") is not None
        except (LogUnavailable, LogDenied):
            return True

    def save(self, state: State) -> None:
        self._log.replace(f"{self._directory}/state.json", json.dumps(_json(state)).encode())

    @property
    def streams(self) -> bool:
        """Whether the stream has begun: its checkpoint then says where it goes on."""
        return bool(self._offsets())

    def needed_version(self, state: State) -> int:
        """The version of the log that the stream's last batch began at.

        After a crash Spark may read that batch again, even if all of it was delivered.
        """
        offsets = self._offsets()
        if len(offsets) < 2:
            return state.version
        content = self.stream.read(f"offsets/{offsets[-2]}") or b""
        return max(int(json.loads(content.splitlines()[-1])["reservoirVersion"]) - 1, 0)

    def _offsets(self) -> list[int]:
        """Numbers of the batches that the stream has begun."""
        names = (entry.path.rsplit("/", 1)[-1] for entry in walk(self.stream, "offsets"))
        return sorted(int(name) for name in names if name.isdigit())

    def clear_stream(self) -> None:
        """Remove the stream's checkpoint: it belongs to a state that is gone."""
        for entry in list(walk(self.stream, "")):
            delete(self.stream, entry.path)

    def drop(self) -> None:
        """Forget everything: the pipeline is a new one. The state goes first."""
        delete(self._log, f"{self._directory}/state.json")
        self.clear_stream()
        self.clear_error()
        for request in self.requests():
            self.answered(request)

    # -- failures, and what people ask for ---------------------------------------------

    def note_error(self, error: PgtideError) -> None:
        """Remember why the pipeline failed, for ``pgtide status``."""
        note = {
            "at": now().isoformat(timespec="milliseconds"),
            "type": type(error).__name__,
            "message": error.message,
            "detail": error.detail,
            "hint": error.hint,
            "transient": isinstance(error, TransientError),
        }
        self._log.replace(f"{self._directory}/error.json", json.dumps(note).encode())

    def error(self) -> dict[str, Any] | None:
        """What ``note_error`` noted; None when there is nothing."""
        content = self._log.read(f"{self._directory}/error.json")
        if content is None:
            return None
        try:
            note = json.loads(content)
            return {name: note[name] for name in _NOTED}
        except (ValueError, KeyError, TypeError) as exc:
            raise PipelineError(
                "the pipeline's last error cannot be understood",
                detail=f"{self._directory}/error.json in the log is not what pgtide writes.",
                hint=f"It goes when a batch succeeds: pgtide run --pipeline {self._name}",
            ) from exc

    def clear_error(self) -> None:
        delete(self._log, f"{self._directory}/error.json")

    def ask_resume(self, table: str | None) -> None:
        """Ask for a parked table, or all of them, to be taken up again."""
        path = f"{self._directory}/resume/{secrets.token_hex(8)}.json"
        self._log.replace(path, json.dumps({"table": table}).encode())

    def requests(self) -> list[Request]:
        """What was asked and not answered yet."""
        found = []
        for entry in walk(self._log, f"{self._directory}/resume"):
            content = self._log.read(entry.path) if entry.path.endswith(".json") else None
            if content is not None:
                found.append(Request(entry.path, self._asked(entry.path, content)))
        return found

    def _asked(self, path: str, content: bytes) -> str | None:
        try:
            table = json.loads(content)["table"]
            return None if table is None else str(table)
        except (ValueError, KeyError, TypeError) as exc:
            raise PipelineError(
                "a request to resume tables cannot be understood",
                detail=f"{path} in the log is not what pgtide writes.",
                hint=f"Delete it, then run: pgtide resume --pipeline {self._name}",
            ) from exc

    def answered(self, request: Request) -> None:
        delete(self._log, request.path)


def pipeline_names(log: Storage) -> list[str]:
    """Pipelines that have ever run on a log, configured or not."""
    selector = fs.FileSelector(PIPELINES, allow_not_found=True)
    try:
        infos = log.filesystem.get_file_info(selector)
    except OSError as exc:
        raise unavailable(exc) from exc
    names = (info.base_name for info in infos if info.type == fs.FileType.Directory)
    return sorted(name for name in names if StateFile(log, name).exists)


def _json(state: State) -> dict[str, Any]:
    fields = asdict(state)
    fields["chunks"] = [str(chunk) for chunk in state.chunks]
    fields["position"] = str(state.position)
    fields["left"] = {name: str(position) for name, position in state.left.items()}
    fields["committed_at"] = state.committed_at and state.committed_at.isoformat()
    fields["batch_at"] = state.batch_at and state.batch_at.isoformat()
    for name, parked in state.parked.items():
        fields["parked"][name]["position"] = str(parked.position)
        fields["parked"][name]["since"] = parked.since.isoformat()
    if state.resuming is not None:
        fields["resuming"]["start"] = str(state.resuming.start)
        fields["resuming"]["until"] = str(state.resuming.until)
        fields["resuming"]["chunks"] = [str(chunk) for chunk in state.resuming.chunks]
    return fields


def _state(fields: dict[str, Any]) -> State:
    for name, kind in _KINDS.items():
        if name in fields and not isinstance(fields[name], kind):
            raise TypeError(name)
    fields["chunks"] = [_bound(chunk) for chunk in fields["chunks"]]
    fields["position"] = Position.parse(fields["position"])
    left = fields.get("left", {})
    fields["left"] = {name: Position.parse(position) for name, position in left.items()}
    for name in ("committed_at", "batch_at"):
        fields[name] = fields[name] and datetime.fromisoformat(fields[name])
    fields["parked"] = {
        name: Parked(
            **{
                **parked,
                "position": Position.parse(parked["position"]),
                "since": datetime.fromisoformat(parked["since"]),
            }
        )
        for name, parked in fields["parked"].items()
    }
    if (resuming := fields["resuming"]) is not None:
        resuming["start"] = Position.parse(resuming["start"])
        resuming["until"] = Position.parse(resuming["until"])
        resuming["chunks"] = [_bound(chunk) for chunk in resuming["chunks"]]
        fields["resuming"] = Resuming(**resuming)
    return State(**fields)


def _bound(chunk: int | str) -> Position:
    """The end of a chunk; states from before positions were cut have an LSN as a number."""
    return Position.end_of(Lsn(chunk)) if isinstance(chunk, int) else Position.parse(chunk)


def now() -> datetime:
    return datetime.now(UTC)
