"""What a check found: a name, a level, a fact and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of ``pgtide check``."""

    name: str
    level: Level
    message: str
    hint: str = ""


def ok(name: str, message: str) -> Check:
    return Check(name, "ok", message)


def warn(name: str, message: str, hint: str = "") -> Check:
    """It works, but something is lost or at risk."""
    return Check(name, "warn", message, hint)


def fail(name: str, message: str, hint: str = "") -> Check:
    """Capture would stop, or the application be harmed."""
    return Check(name, "fail", message, hint)
