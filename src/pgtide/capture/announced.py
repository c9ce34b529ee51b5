"""Layouts against the relations that the server announces: the same table as it is sent?"""

from __future__ import annotations

from pgtide.shape import Shape
from pgtide.wal.messages import Relation


def describes(layout: Shape, relation: Relation) -> bool:
    """Whether a layout is of the table as it is sent; what is generated need not be."""
    if (layout.schema, layout.table) != (relation.schema, relation.table):
        return False
    known = {column.name: column.type_oid for column in layout.columns}
    sent = {column.name: column.type_oid for column in relation.columns}
    expected = {column.name for column in layout.columns if not column.generated}
    return expected <= sent.keys() and sent.items() <= known.items()


def same(layout: Shape, relation: Relation) -> bool:
    """Whether the server would announce this layout as it announced that relation."""
    columns = {column.name: column for column in layout.columns}
    return (
        describes(layout, relation)
        and layout.replica_identity == relation.replica_identity
        and all(
            (columns[sent.name].typmod, columns[sent.name].identity) == (sent.typmod, sent.identity)
            for sent in relation.columns
        )
    )
