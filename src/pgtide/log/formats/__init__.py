"""Events as JSON in the shapes of other systems: one module per format, one function each.

A formatter takes an event, the log's source and the present time (some envelopes carry the
clock of whoever emits them) and returns what ``json.dumps`` prints. Every event has a form
in every format: nothing is left out because another system would not have seen it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import Any, TypeAlias

from pgtide.errors import ConfigError
from pgtide.log.event import Event
from pgtide.log.source import LogSource

Formatter: TypeAlias = Callable[[Event, LogSource, datetime], dict[str, Any]]

NAMES = ("native", "debezium", "pgstream", "pg_flo")


def formatter(name: str) -> Formatter:
    """The formatter of that name."""
    if name not in NAMES:
        raise ConfigError(f"unknown format {name!r}", hint=f"Choose one of: {', '.join(NAMES)}")
    found: Formatter = import_module(f"pgtide.log.formats.{name}").format_event
    return found
