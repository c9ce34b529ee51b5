"""Where things are kept that are made once per machine: below the user's cache directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pgtide.errors import EnvironmentMissing


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/pgtide``, or ``~/.cache/pgtide``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "pgtide"


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The directory ``name`` of the cache, which ``make`` fills the first time.

    Filled under another name and then renamed: a second process sees all of it
    or nothing, and what an interrupted one leaves is never taken for complete.
    """
    place = cache_directory() / name
    if place.is_dir():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    except OSError as error:
        raise EnvironmentMissing(
            f"the cache directory {place.parent} cannot be written",
            detail=f"{error.strerror}.",
            hint="set XDG_CACHE_HOME to a directory that can be written",
        ) from error
    try:
        make(draft)
        try:
            draft.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place
