"""A look at the log from the set-up commands: is there one, whose is it, can it be written?"""

from __future__ import annotations

import os
from pathlib import Path

from pgtide.config import Config
from pgtide.errors import LogMissing, PgtideError
from pgtide.log.source import LogSource
from pgtide.log.storage import Storage
from pgtide.log.writer import LogWriter
from pgtide.postgres.health import LogProbe


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
