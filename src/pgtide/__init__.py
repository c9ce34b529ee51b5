"""pgtide: Postgres change data capture through one durable, totally ordered change log.

This is the public door; everything else may change. Names are loaded when they
are first used, so that ``import pgtide`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pgtide import errors
from pgtide.version import __version__

if TYPE_CHECKING:
    from pgtide.config import Config
    from pgtide.log.event import UNCHANGED, Event
    from pgtide.log.reader import Log
    from pgtide.pipeline.handle import Pipeline, Syncer
    from pgtide.position import Lsn, Position
    from pgtide.shape import Column, Shape
    from pgtide.spark.changes import changes, latest
    from pgtide.spark.session import session
    from pgtide.spark.source_format import register

__all__ = [
    "UNCHANGED",
    "Column",
    "Config",
    "Event",
    "Log",
    "Lsn",
    "Pipeline",
    "Position",
    "Shape",
    "Syncer",
    "__version__",
    "changes",
    "errors",
    "latest",
    "register",
    "session",
]

_HOMES = {
    "UNCHANGED": "pgtide.log.event",
    "Column": "pgtide.shape",
    "Config": "pgtide.config",
    "Event": "pgtide.log.event",
    "Log": "pgtide.log.reader",
    "Lsn": "pgtide.position",
    "Pipeline": "pgtide.pipeline.handle",
    "Position": "pgtide.position",
    "Shape": "pgtide.shape",
    "Syncer": "pgtide.pipeline.handle",
    "changes": "pgtide.spark.changes",
    "latest": "pgtide.spark.changes",
    "register": "pgtide.spark.source_format",
    "session": "pgtide.spark.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pgtide' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
