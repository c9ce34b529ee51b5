"""A pipeline runs once at a time: whoever runs it holds ``<log>/pipelines/<name>/lock``.

The lock is the operating system's and ends with the process, however that ends. Logs in an
object store have none: there two runs that overlap meet in the target, whose transactions let
one of them through.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from types import TracebackType
from typing import Self

from pgtide.errors import PipelineError
from pgtide.log.storage import Storage, unavailable
from pgtide.pipeline.state_file import PIPELINES

PATIENCE_S = 2.0  # somebody who only looks holds the lock for a moment
_POLL_S = 0.05


class Lease:
    """The right to run a pipeline, for as long as the block lasts."""

    def __init__(self, log: Storage, pipeline: str) -> None:
        self._log = log
        self._pipeline = pipeline
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        if self._log.local is None:
            return self
        try:
            descriptor = _open(self._log, self._pipeline, os.O_RDWR | os.O_CREAT)
        except OSError as exc:
            raise unavailable(exc) from exc
        deadline = time.monotonic() + PATIENCE_S
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                holder = _read(descriptor)
                os.close(descriptor)
                raise PipelineError(
                    f"pipeline {self._pipeline} is running already",
                    detail=f"It is run by {holder}.",
                    hint="Stop that process first: a pipeline runs once at a time.",
                )
            time.sleep(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def holder_of(log: Storage, pipeline: str) -> str | None:
    """Who runs a pipeline; None when nobody does, or where that cannot be told."""
    if log.local is None:
        return None
    try:
        descriptor = _open(log, pipeline, os.O_RDONLY)
    except OSError:
        return None
    try:
        return None if _try_lock(descriptor, fcntl.LOCK_SH) else _read(descriptor)
    finally:
        os.close(descriptor)


def _open(log: Storage, pipeline: str, flags: int) -> int:
    assert log.local is not None
    directory = log.local / PIPELINES / pipeline
    if flags & os.O_CREAT:
        directory.mkdir(parents=True, exist_ok=True)
    return os.open(directory / "lock", flags, 0o644)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
