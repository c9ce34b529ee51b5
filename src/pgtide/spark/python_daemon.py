"""PySpark's daemon of Python workers, without a traceback when Spark leaves a worker.

Spark closes its end when it cancels a task and when a worker has been idle for a minute. What the
worker still had to say is then lost to nobody, but PySpark's daemon prints that it could not be
said. What fails inside a worker is sent to Spark and is not touched by this.

Run by Spark as ``python -m pgtide.spark.python_daemon pyspark.worker``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

daemon: Any = import_module("pyspark.daemon")  # it has no types

_LEFT = 1
"""Of a worker that has nobody to work for: the daemon lets it end."""

_worker = daemon.worker


def worker(sock: Any, authenticated: bool) -> int:
    """PySpark's, but that a closed socket is no error."""
    try:
        code: int = _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return _LEFT
    return code


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
