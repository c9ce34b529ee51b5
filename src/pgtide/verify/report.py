"""What a verification found. Keys, never other values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["missing", "extra", "different"]
"""``missing`` in the target, ``extra`` there, or with other values in some columns."""

LISTED = 100  # keys of a table that are listed; all of them are counted
REPAIRED = 100_000  # keys that are read again one by one; of more, the whole table is


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same on both sides."""

    kind: Kind
    key: tuple[str | None, ...]  # as Postgres prints it; NULL only of an extra row
    columns: tuple[str, ...] = ()  # of a different row: those that differ


@dataclass
class TableReport:
    """One table."""

    table: str
    position: str = ""  # where source and target were compared
    rows: int = 0  # of the source that were compared
    target_rows: int = 0
    in_flight: int = 0  # keys left out because they were being changed
    missing: int = 0
    extra: int = 0
    different: int = 0
    key: tuple[str, ...] = ()  # names of the key columns; empty for a table without a key
    differences: list[Difference] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # columns, and why
    sample: float | None = None
    refused: str = ""  # why the table was not compared
    note: str = ""  # what the target does not have: the table, which may be empty, or columns
    seconds: float = 0.0
    keys: list[tuple[str, ...]] = field(default_factory=list, repr=False)  # to be repaired
    oid: int | None = field(default=None, repr=False)  # by which that finds the table

    @property
    def differing(self) -> int:
        return self.missing + self.extra + self.different

    @property
    def equal(self) -> bool | None:
        """None: not compared."""
        return None if self.refused else not self.differing and not self.note

    def document(self) -> dict[str, Any]:
        fields = asdict(self)
        del fields["keys"], fields["oid"]
        fields["equal"] = self.equal
        fields["seconds"] = round(self.seconds, 3)
        return fields


@dataclass
class PipelineReport:
    """All tables of a pipeline that were looked at."""

    pipeline: str
    tables: list[TableReport] = field(default_factory=list)
    refused: str = ""  # why none of its tables can be compared
    seed: str = ""  # of the sample

    @property
    def differing(self) -> list[TableReport]:
        return [table for table in self.tables if table.equal is False]

    def document(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "equal": None if self.refused else not self.differing,
            "refused": self.refused,
            "seed": self.seed,
            "tables": [table.document() for table in self.tables],
        }


def listed(found: Sequence[Difference]) -> list[Difference]:
    """The first of them, by kind and key."""
    return sorted(found, key=lambda one: (one.kind, *(part or "" for part in one.key)))[:LISTED]
