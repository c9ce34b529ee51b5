"""A look at the places that are written to: whose is the log, can it and the sinks be written?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pgtide.config import Config
from pgtide.config.sinks import DeltaSettings, FileSettings
from pgtide.errors import LogMissing, PgtideError
from pgtide.log.source import LogSource
from pgtide.log.storage import Storage
from pgtide.log.writer import LogWriter
from pgtide.postgres.health import LogProbe
from pgtide.postgres.verdict import Check, fail, ok


def probe_log(config: Config) -> LogProbe:
    """Find out without changing anything."""
    path = config.log.path
    try:
        writer = LogWriter(path, config.log.storage, config.source.slot)
        source = LogSource.of(writer.properties, path)
    except LogMissing:
        source = None
    except PgtideError as error:
        return LogProbe(path, problem=error.detail or error.message)
    return LogProbe(path, source, problem=_not_writable(Storage(path, config.log.storage)))


def check_sinks(config: Config) -> Iterator[Check]:
    """A line for each sink with a local path, and for each with a path that cannot be used."""
    for name, pipeline in config.pipelines.items():
        sink = pipeline.sink
        if not isinstance(sink, DeltaSettings | FileSettings):
            continue
        try:
            storage = Storage(sink.path, sink.storage)
            problem = _not_writable(storage)
        except PgtideError as error:
            problem = error.detail or error.message
        if problem:
            yield fail("sink", f"{name}: {problem}", f"Correct pipelines.{name}.sink.path.")
        elif storage.local is not None:
            yield ok("sink", f"{name}: {storage.local} is writable")


def _not_writable(storage: Storage) -> str:
    """Why the directory cannot be written to; an object store says so at the first commit."""
    if storage.local is None:
        return ""
    there: Path = storage.local
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"{there} is not a directory"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"
