"""How far a pipeline has come, and what that is as JSON."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from pgtide.position import Lsn, Position

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
    applied: Position | None = None  # the last position in the target, if that tells it

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


def to_json(state: State) -> dict[str, Any]:
    fields = asdict(state)
    fields["chunks"] = [str(chunk) for chunk in state.chunks]
    fields["position"] = str(state.position)
    fields["left"] = {name: str(position) for name, position in state.left.items()}
    fields["applied"] = state.applied and str(state.applied)
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


def from_json(fields: dict[str, Any]) -> State:
    """The state that ``to_json`` wrote; TypeError, KeyError and others for what it did not."""
    for name, kind in _KINDS.items():
        if name in fields and not isinstance(fields[name], kind):
            raise TypeError(name)
    fields["chunks"] = [_bound(chunk) for chunk in fields["chunks"]]
    fields["position"] = Position.parse(fields["position"])
    left = fields.get("left", {})
    fields["left"] = {name: Position.parse(position) for name, position in left.items()}
    if (applied := fields.get("applied")) is not None:
        fields["applied"] = Position.parse(applied)
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
