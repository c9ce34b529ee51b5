"""Whether a log still lacks the rows that were there before it: asked before every start."""

from __future__ import annotations

from pgtide.config import Config
from pgtide.errors import LogError
from pgtide.log.reader import Log


def snapshot_due(config: Config) -> bool:
    """Whether ``source.snapshot: initial`` has yet to be done; raises if it cannot be any more."""
    if config.source.snapshot != "initial":
        return False
    log = Log(config.log.path, config.log.storage).snapshot()
    if log.history:
        return False
    if log.empty:
        return True
    raise LogError(
        "the log has changes, but not the rows that were there before",
        detail="source.snapshot is initial, and changes were captured without a snapshot.",
        hint="Run: pgtide snapshot. Or do without those rows: source.snapshot: never",
    )
