"""What a pipeline knows about itself: ``<log>/pipelines/<name>/state.json``.

The stream's own checkpoint is beside it, in ``stream``. The two belong together: deleting the
directory makes the pipeline a new one, with another incarnation, that reads the log from its
beginning, or from where a target says it is; targets tell by position what they have. When only
``stream`` is gone, or the log no longer has the version that it is at, the pipeline goes on at its
position. Beside them are ``error.json``, why it last failed, until a batch succeeds; and
``resume/…``, one file for each request to take parked tables up again.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from pgtide.errors import (
    LogDenied,
    LogUnavailable,
    PgtideError,
    PipelineError,
    TransientError,
)
from pgtide.log.files import delete, walk
from pgtide.log.own_files import understood
from pgtide.log.storage import Storage, unavailable
from pgtide.pipeline.state import State, from_json, now, to_json

PIPELINES = "pipelines"
_NOTED = ("at", "type", "message", "detail", "hint", "transient")


@dataclass(frozen=True)
class Request:
    """Somebody asked for a parked table, or for all of them, to be resumed."""

    path: str
    table: str | None


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
        path = f"{self._directory}/state.json"
        content = self._log.read(path)
        if content is None:
            return None
        hint = f"Restore it, or start over: pgtide replay --pipeline {self._name}"
        with understood(
            "the pipeline's state", f"{path} in the log", hint=hint, error=PipelineError
        ):
            return from_json(json.loads(content))

    @property
    def exists(self) -> bool:
        """Whether there is a state, be it one that cannot be read."""
        try:
            return self._log.read(f"{self._directory}/state.json") is not None
        except (LogUnavailable, LogDenied):
            return True

    def save(self, state: State) -> None:
        self._log.replace(f"{self._directory}/state.json", json.dumps(to_json(state)).encode())

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
        return max(self._end_of(offsets[-2])[0] - 1, 0)

    def versions_of(self, batch: int) -> range | None:
        """The commits of the log that a batch of the stream consists of.

        None where that is not known: of the first batch, or where a commit is parted.
        """
        if not {batch - 1, batch} <= {*self._offsets()}:
            return None
        (begin, before), (end, index) = (self._end_of(number) for number in (batch - 1, batch))
        return range(begin, end) if before < 0 and index < 0 else None

    def _end_of(self, batch: int) -> tuple[int, int]:
        """Where Spark ends a batch: a version of the log, and the file in it, -1 before all."""
        content = self.stream.read(f"offsets/{batch}") or b""
        end = json.loads(content.splitlines()[-1])
        return int(end["reservoirVersion"]), int(end["index"])

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
        path = f"{self._directory}/error.json"
        content = self._log.read(path)
        if content is None:
            return None
        hint = f"It goes when a batch succeeds: pgtide run --pipeline {self._name}"
        with understood(
            "the pipeline's last error", f"{path} in the log", hint=hint, error=PipelineError
        ):
            note = json.loads(content)
            return {name: note[name] for name in _NOTED}

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
        hint = f"Delete it, then run: pgtide resume --pipeline {self._name}"
        with understood(
            "a request to resume tables", f"{path} in the log", hint=hint, error=PipelineError
        ):
            table = json.loads(content)["table"]
            return None if table is None else str(table)

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
