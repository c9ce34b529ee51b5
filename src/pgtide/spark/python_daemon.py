"""PySpark's daemon of Python workers, quicker between tasks and silent when Spark leaves a worker.

Before each task PySpark has Python forget what it knows of the places that modules come from, in
case there are new files. Python then reads the directory of every archive on the path again,
Spark's own jar among them: 0.1 s of CPU time a task. Here only of archives that have changed.

Spark closes its end when it cancels a task and when a worker has been idle for a minute. What the
worker still had to say is then lost to nobody, but PySpark's daemon prints that it could not be
said. What fails inside a worker is sent to Spark and is not touched by this.

Run by Spark as ``python -m pgtide.spark.python_daemon pyspark.worker``.
"""

from __future__ import annotations

import os
import zipimport
from importlib import import_module
from typing import Any

daemon: Any = import_module("pyspark.daemon")  # it has no types

_LEFT = 1
"""Of a worker that has nobody to work for: the daemon lets it end."""

_worker = daemon.worker
_archives: Any = zipimport.zipimporter
_forget = _archives.invalidate_caches


def forget_if_changed(importer: Any) -> None:
    """Have an importer read its archive again, if that is another one than the last time."""
    try:
        found = os.stat(importer.archive)
    except OSError:
        _forget(importer)
        return
    version = (found.st_ino, found.st_mtime_ns, found.st_size)
    if getattr(importer, "pgtide_version", None) != version:
        _forget(importer)
        importer.pgtide_version = version


def worker(sock: Any, authenticated: bool) -> int:
    """PySpark's, but that a closed socket is no error."""
    try:
        code: int = _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return _LEFT
    return code


if __name__ == "__main__":
    _archives.invalidate_caches = forget_if_changed
    daemon.worker = worker
    daemon.manager()
