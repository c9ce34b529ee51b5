"""Shapes: the column layouts that a table had, each true from a position on.

A row of the log is an array of texts; its shape says what they are. Columns are
told apart by ``attnum`` and tables by ``oid``, so a rename is a rename and a
table dropped and created again under its name is another table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgtide.position import Lsn


@dataclass(frozen=True, slots=True)
class Column:
    """One column as rows of the log carry it."""

    name: str
    type_oid: int
    typmod: int = -1
    type_name: str = ""  # as format_type() prints it, "" when nobody told us
    attnum: int | None = None  # None: no catalog facts were available at that position
    nullable: bool = True
    key: bool = False  # part of the primary key, from the catalog
    identity: bool = False  # part of the replica identity, from the Relation message
    generated: bool = False
    base_oid: int = 0  # of a domain: the type below all its domains; 0 when it is none
    base_typmod: int = -1  # that type's
    element_oid: int = 0  # of an array: its elements' type, below all domains; 0 when it is none
    # or when its elements are not separated by commas


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's layout; ``id`` 0 until the log has given it one."""

    oid: int
    schema: str
    table: str
    columns: tuple[Column, ...]
    replica_identity: str = "d"  # d default, i index, f full, n nothing
    root_oid: int = 0  # topmost partitioned ancestor, 0 when there is none
    root_schema: str = ""
    root_table: str = ""
    id: int = 0
    since: Lsn = Lsn(0)

    @property
    def name(self) -> str:
        """The table's name as people write it."""
        return f"{self.schema}.{self.table}"

    @property
    def home(self) -> int:
        """The relation that its rows belong to: of a partition, the root."""
        return self.root_oid or self.oid

    @property
    def home_name(self) -> tuple[str, str]:
        """Schema and table that its rows belong to, while it holds."""
        if self.root_oid:
            return self.root_schema, self.root_table
        return self.schema, self.table

    @property
    def keys(self) -> tuple[int, ...]:
        """Indexes of the columns that identify a row; none for a table without a key."""
        # What an UPDATE or DELETE sends of the old row is its replica identity: with an index
        # as identity that index is the key, whatever the primary key is.
        by_index = self.replica_identity == "i"
        columns = enumerate(self.columns)
        return tuple(i for i, column in columns if (column.identity if by_index else column.key))

    def same_layout(self, other: Shape) -> bool:
        """Whether both describe the same rows, whatever their ids."""
        return replace(self, id=0, since=Lsn(0)) == replace(other, id=0, since=Lsn(0))
