"""Which source a log belongs to, and the Delta application ids that hold its positions.

A position that must change together with the files is a Delta ``txn`` action, not a
table property: changing a property is a metadata change, and that would make the
appending writer's next commit fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgtide.errors import LogError

FORMAT = "1"


@dataclass(frozen=True, slots=True)
class LogSource:
    """The database cluster, database and slot that a log was written from."""

    system_identifier: str
    database: str
    slot: str
    snapshot: int = field(default=0, compare=False)
    """The consistent point of the newest initial snapshot in the log; 0: there is none."""

    @property
    def identity(self) -> dict[str, str]:
        """What tells it from other sources."""
        return {
            "system_identifier": self.system_identifier,
            "database": self.database,
            "slot": self.slot,
        }

    @classmethod
    def of(cls, properties: Mapping[str, str], where: str) -> LogSource:
        """Read the table properties that ``create_log`` wrote."""
        found = properties.get("pgtide.format")
        if found != FORMAT:
            raise LogError(
                "not a change log that this pgtide can read",
                detail=f"{where} has format {found or 'none'}, this pgtide reads {FORMAT}.",
                hint="Point log.path at a log of pgtide, or use the pgtide that wrote it.",
            )
        return cls(
            system_identifier=properties["pgtide.system_identifier"],
            database=properties["pgtide.database"],
            slot=properties["pgtide.slot"],
        )


def app_id(slot: str) -> str:
    """The application id whose version is the log's position V."""
    return f"pgtide/{slot}"


def timeline_app_id(slot: str) -> str:
    """The application id whose version is the source's timeline at V."""
    return f"pgtide/{slot}/timeline"


def complete_from_app_id(slot: str) -> str:
    """The application id whose version is the first LSN that retention has kept whole."""
    return f"pgtide/{slot}/complete_from"


def maintenance_app_id(slot: str) -> str:
    """The application id that counts maintenance commits.

    Delta accepts two commits that remove the same file, which would double its rows when both
    were compactions: the counter makes the second one fail instead.
    """
    return f"pgtide/{slot}/maintenance"
