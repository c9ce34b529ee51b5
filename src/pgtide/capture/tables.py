"""What relations and logical messages mean: the decoder's catalog, backed by the log.

Layouts come from the catalog as it was when the slot was made (the baseline in
the log's shapes) and follow the DDL messages in the stream from there, so a row
is always described by what was true at its position. A Relation message says
which columns are sent; the layout adds what it does not say: attnum, primary
key, type names, partition root.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from pgtide.capture.announced import describes, same
from pgtide.capture.ddl import DdlCommand, Forged, SigningKey, read_message
from pgtide.capture.refresh_rows import sweep_payload
from pgtide.capture.rewrites import is_partition
from pgtide.config import TablePatterns
from pgtide.log.shapes import ShapeStore
from pgtide.position import Lsn, Position
from pgtide.postgres.catalog import selects
from pgtide.postgres.ddl_trigger import PREFIX, SPACER_PREFIX
from pgtide.postgres.published import PublishedTables
from pgtide.shape import Column, Shape
from pgtide.wal.decoder import LoggedMessage, Watermark
from pgtide.wal.messages import LogicalMessage, Relation, RelationColumn, TypeName
from pgtide.wal.relations import NO_TABLE, Slot

logger = logging.getLogger(__name__)

HEARTBEAT_PREFIX = "pgtide.heartbeat"
WATERMARK_PREFIX = "pgtide.watermark"
# Objects that captured tables may come to use, whichever tables a command on them touches.
_ANY_SEQ = (1 << 31) - 1  # behind every row of a transaction
SHARED = frozenset({"TYPE", "DOMAIN", "SCHEMA"})


@dataclass(slots=True)
class Counters:
    """What was left out or refused, because skipping is counted, never silent."""

    forged_ddl: int = 0
    filtered_ddl: int = 0
    unknown_ddl: int = 0
    unseen_ddl: int = 0  # a table that changed without its DDL, as with event_triggers = off
    heartbeats: int = 0

    def as_dict(self) -> dict[str, int]:
        """The figures by name."""
        return asdict(self)


class TableCatalog:
    """Implements ``pgtide.wal.decoder.Catalog``."""

    def __init__(
        self,
        shapes: ShapeStore,
        patterns: TablePatterns,
        *,
        key: SigningKey | None,
        live_layout: Callable[[int], Shape | None],
        on_ddl: Callable[[DdlCommand, Lsn, int], None],
        published: PublishedTables,
    ) -> None:
        self._shapes = shapes
        self._patterns = patterns
        self._key = key
        self._live_layout = live_layout
        self._on_ddl = on_ddl
        self._published = published
        self._layouts = dict(shapes.current)
        self._announced: dict[int, Relation] = {}
        self._type_names: dict[int, str] = {}
        self.counters = Counters()

    def relation(self, relation: Relation, lsn: Lsn) -> tuple[Slot, int] | None:
        """Slot and width of a relation, None if configuration leaves the table out."""
        relation = self._under_its_name(relation)
        self._announced[relation.oid] = relation
        shape = replace(self._shape(relation), since=lsn)
        if not selects(self._patterns, shape):
            return None
        shape = self._shapes.assign(shape)
        return Slot(shape.schema, shape.table, shape.id), len(shape.columns)

    def type_name(self, message: TypeName) -> None:
        """Keep the name of a type that is not built in."""
        self._type_names[message.oid] = f"{message.schema}.{message.name}"

    def message(self, message: LogicalMessage, xid: int) -> LoggedMessage | Watermark | None:
        """The row for a logical message, None for pgtide's own and left-out DDL."""
        if message.prefix == WATERMARK_PREFIX and not message.transactional:
            # Anybody may send one: only those whose token we have handed out mean something.
            return Watermark(message.content.decode(errors="replace"), message.lsn)
        if message.prefix == SPACER_PREFIX:
            return None
        if message.prefix == HEARTBEAT_PREFIX:
            self.counters.heartbeats += 1
            return None
        if message.prefix == PREFIX and message.transactional and self._key is not None:
            command = read_message(message.content, xid=xid, key=self._key)
            if not isinstance(command, Forged):
                return self._ddl(command, message.lsn, xid)
            # Any role may emit such a message. It is no DDL, and it must not stop us either.
            self.counters.forged_ddl += 1
        return LoggedMessage("message", _message_payload(message))

    def _ddl(self, command: DdlCommand, lsn: Lsn, xid: int) -> LoggedMessage | None:
        if command.marks.temporary:
            # REFRESH MATERIALIZED VIEW CONCURRENTLY makes tables of its own, and hides their oids.
            return None
        self._on_ddl(command, lsn, xid)
        if command.unknown:
            self.counters.unknown_ddl += 1
        before = [self._layouts[new.oid] for new in command.layouts if new.oid in self._layouts]
        swept = tuple(self._leaving(command, lsn))
        for layout in command.layouts:
            self._layouts[layout.oid] = layout
            if selects(self._patterns, layout):
                self._shapes.assign(replace(self._sent(layout), since=lsn))
        payload = command.payload()
        # A table that a rename takes out of the patterns leaves the log with that command.
        tables = [*command.layouts, *self._forget_dropped(payload["dropped"]), *before]
        wanted = [table for table in tables if selects(self._patterns, table)]
        if tables and not wanted and command.tag.split()[-1] not in SHARED:
            self.counters.filtered_ddl += 1
            return None
        # DDL that is not a table's own (a type, a function, a schema) is always logged.
        slot = Slot(wanted[0].schema, wanted[0].table) if wanted else NO_TABLE
        again = self._again(command.layouts)
        return LoggedMessage("ddl", json.dumps(payload), slot, swept, again)

    def _leaving(self, command: DdlCommand, lsn: Lsn) -> Iterator[LoggedMessage]:
        """The rows of a partition leave its root without any event: they are swept there."""
        older = Position(lsn, _ANY_SEQ)
        for shape, how in self._partitions_leaving(command):
            payload = json.dumps(sweep_payload(how, older))
            yield LoggedMessage("sweep", payload, Slot(shape.schema, shape.table, shape.id))

    def _partitions_leaving(self, command: DdlCommand) -> Iterator[tuple[Shape, str]]:
        """Captured partitions that a command takes from their root, and how it does."""
        dropped = {item["oid"] for item in command.dropped if item["type"] == "table"}
        detached = "detach partition" in command.marks.reasons
        roots = {layout.oid: layout.root_oid for layout in command.layouts}
        for shape in list(self._shapes.current.values()) if dropped or detached else ():
            if not shape.root_oid or not selects(self._patterns, shape):
                continue
            # One that has partitions takes them along, and those have the rows.
            other_root = roots.get(shape.oid, shape.root_oid) != shape.root_oid
            if detached and (other_root or is_partition(command, shape)):
                yield shape, "detach partition"
            elif shape.oid in dropped and shape.root_oid not in dropped:
                yield shape, "drop partition"

    def _again(self, layouts: Iterable[Shape]) -> tuple[Relation, ...]:
        """Tables that the server will not announce anew, although what we add has changed.

        It does so when the table itself changed; not when its root was renamed, or a type, and
        before Postgres 16 not when its schema was.
        """
        known = [(layout, self._announced.get(layout.oid)) for layout in layouts]
        named = [(layout, replace(r, schema=layout.schema)) for layout, r in known if r]
        return tuple(relation for layout, relation in named if same(self._listed(layout), relation))

    def _forget_dropped(self, dropped: list[dict[str, Any]]) -> list[Shape]:
        """The dropped tables that we knew; a partition's entry is told its root."""
        shapes = []
        for item in dropped:
            shape = self._layouts.pop(item["oid"], None) if item["type"] == "table" else None
            if shape is None:
                continue
            shapes.append(shape)
            if shape.root_oid:
                item["root"] = {
                    "oid": shape.root_oid,
                    "schema": shape.root_schema,
                    "table": shape.root_table,
                }
        return shapes

    def _sent(self, layout: Shape) -> Shape:
        """The layout without the columns that the publication does not carry."""
        return self._published.of(layout.oid).of(layout)

    def _listed(self, layout: Shape) -> Shape:
        """The layout with the columns of a list, if the publication has one for the table."""
        published = self._published.of(layout.oid)
        return layout if published.attnums is None else published.of(layout)

    def _describes(self, layout: Shape, relation: Relation) -> bool:
        return describes(self._listed(layout), relation)

    def _under_its_name(self, relation: Relation) -> Relation:
        """The relation in the schema that it has here, if it is announced in an earlier one.

        ALTER SCHEMA … RENAME waits for nobody: the rows of a transaction that was open meanwhile
        follow the command, and are announced as they were written. And before Postgres 16 the
        last announcement may be of a transaction that we have already.
        """
        layout = self._layouts.get(relation.oid)
        if layout is None or self._key is None or layout.schema == relation.schema:
            return relation
        renamed = replace(relation, schema=layout.schema)
        earlier = any(
            (shape.oid, shape.schema) == (relation.oid, relation.schema)
            for shape in self._shapes.by_id.values()
        )
        if not earlier or not self._describes(layout, renamed):
            return relation
        live = self._live_layout(relation.oid)
        back = live is not None and live.schema == relation.schema  # renamed once more, unseen
        return relation if back else renamed

    def _shape(self, relation: Relation) -> Shape:
        layout = self._layouts.get(relation.oid)
        if layout is not None and self._key is not None and not self._describes(layout, relation):
            # The triggers should have told us: they were switched off for that command.
            self.counters.unseen_ddl += 1
            logger.warning("table %s.%s changed unseen", relation.schema, relation.table)
        if layout is None or not self._describes(layout, relation):
            # No DDL message told us: ask the catalog, which may be ahead of this position.
            layout = self._live_layout(relation.oid)
            if layout is not None and self._describes(layout, relation):
                self._layouts[relation.oid] = layout
            else:
                layout = None
        known = {column.name: column for column in layout.columns} if layout else {}
        return Shape(
            oid=relation.oid,
            schema=relation.schema,
            table=relation.table,
            columns=tuple(self._column(c, known.get(c.name), relation) for c in relation.columns),
            replica_identity=relation.replica_identity,
            root_oid=layout.root_oid if layout else 0,
            root_schema=layout.root_schema if layout else "",
            root_table=layout.root_table if layout else "",
        )

    def _column(self, sent: RelationColumn, known: Column | None, relation: Relation) -> Column:
        if known is not None:
            return replace(known, typmod=sent.typmod, identity=sent.identity)
        return Column(
            name=sent.name,
            type_oid=sent.type_oid,
            typmod=sent.typmod,
            type_name=self._type_names.get(sent.type_oid, ""),
            # With the default identity the flags are the primary key's.
            key=sent.identity and relation.replica_identity == "d",
            identity=sent.identity,
        )


def _message_payload(message: LogicalMessage) -> str:
    content: dict[str, str | bool] = {
        "prefix": message.prefix,
        "transactional": message.transactional,
    }
    try:
        content["content"] = message.content.decode()
    except UnicodeDecodeError:
        content["content_base64"] = base64.b64encode(message.content).decode()
    return json.dumps(content)
