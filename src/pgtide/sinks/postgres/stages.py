"""Stages: tables of the target that hold a batch's rows until one transaction applies them.

There is one for each layout of a table, unlogged, in schema ``pgtide``. Its values have the types
of the source's columns where every server knows those, and are texts otherwise: the target's
own columns decide what a text becomes. Every task that copies rows marks them with a number of
its own, ``load``; only loads that the driver has heard of count. So a task that ran twice, or one
of a run that is dead, changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from psycopg import sql

from pgtide import oids
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.shape import Column, Shape
from pgtide.sinks.postgres.bookkeeping import SCHEMA
from pgtide.sinks.postgres.refused_lines import Destination
from pgtide.spark.layout import TableName

OWN = ("segment", "lsn", "seq", "kind", "known", "copies", "unsent")
"""What each staged row has besides its values: see ``staged_rows``."""
_OWN_TYPES = ("int", "bigint", "bigint", '"char"', '"char"', "int", "int[]")
# Names of objects, which need not be there yet when rows are staged: regproc, regclass, …
NAMES_OF_OBJECTS = frozenset({24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191})
KEPT_BYTES = 2 << 20  # of a stage; reading past them takes a few milliseconds
NOTHING = "nothing"  # in the place of the values of a table without columns
LOAD = "pgtide.load"  # the setting with the number of a task's load


@dataclass(frozen=True)
class Stage:
    """Where rows of one layout are put."""

    pipeline: str
    number: int  # the shape's, which tells stages apart
    columns: tuple[Column, ...]  # in the order of the values
    keys: tuple[int, ...]  # which of them identify a row
    moves: bool = False  # whether values may have to be taken from another row
    rules: str = ""  # that rows went through; what others left here may not be for all to see

    @classmethod
    def of(
        cls, pipeline: str, shape: Shape, key_names: Sequence[str], *, moves: bool = False
    ) -> Stage:
        names = [column.name for column in shape.columns]
        keys = tuple(names.index(name) for name in key_names)
        return cls(pipeline, shape.id, shape.columns, keys, moves)

    @property
    def name(self) -> str:
        """The table's name, quoted."""
        return f'{SCHEMA}."{prefix(self.pipeline)}{self.number}"'

    @cached_property
    def typed(self) -> tuple[bool, ...]:
        """Of each value, whether it has its type here already."""
        return tuple(_everywhere(column) for column in self.columns)

    def create(self) -> str:
        """SQL: the table, empty."""
        own = [f"{name} {kind}" for name, kind in zip(OWN, _OWN_TYPES, strict=True)]
        values = [f"v{index} {self._type(index)}" for index in range(len(self.columns))]
        values = values or [f"{NOTHING} text"]
        origin = [f"o{index} {self._type(index)}" for index in self._origin]
        load = f"load bigint DEFAULT current_setting('{LOAD}')::bigint"
        return (
            f"CREATE UNLOGGED TABLE {self.name} ({', '.join([*own, *values, *origin, load])})"
            " WITH (autovacuum_enabled = off)"
        )

    def create_index(self) -> str:
        """SQL: what finds single events, if it is not there yet."""
        name = f"{prefix(self.pipeline)}{self.number}_at"
        return f'CREATE INDEX IF NOT EXISTS "{name}" ON {self.name} (lsn, seq)'

    def analyze(self) -> str:
        """SQL: tells the planner what rows are chosen and joined by; without a key, by all."""
        joined = self.keys or range(len(self.columns))
        chosen = ["segment", "kind", "known", "load", *(f"v{index}" for index in joined)]
        return f"ANALYZE {self.name} ({', '.join(chosen)})"

    def copy(self) -> str:
        """SQL: takes the lines of ``staged_rows``."""
        values = [f"v{index}" for index in range(len(self.columns))] or [NOTHING]
        origin = [f"o{index}" for index in self._origin]
        return f"COPY {self.name} ({', '.join([*OWN, *values, *origin])}) FROM STDIN"

    def destination(self, table: TableName) -> Destination:
        """Where lines go that are rows of a table."""
        key = {name: len(OWN) + place for name, place in self.key_places.items()}
        return Destination(self.copy(), table, key)

    @property
    def key_places(self) -> dict[str, int]:
        """Names of the key's columns, and their places among the values."""
        return {self.columns[index].name: index for index in self.keys}

    @property
    def _origin(self) -> tuple[int, ...]:
        return self.keys if self.moves else ()

    def _type(self, index: int) -> str:
        return self.columns[index].type_name if self.typed[index] else "text"


def position_of(fields: Sequence[str | None]) -> Position:
    """The position of a staged row, from the fields of its line."""
    lsn, seq = (int(fields[OWN.index(name)] or 0) for name in ("lsn", "seq"))
    return Position(Lsn(lsn), seq)


def prefix(pipeline: str) -> str:
    """What names of a pipeline's stages begin with; names have 63 bytes at most."""
    return f"stage_{hashlib.sha256(pipeline.encode()).hexdigest()[:12]}_"


def prepare_stages(connection: SqlConnection, pipeline: str, stages: Iterable[Stage]) -> None:
    """Have just these stages; in one transaction.

    Rows of earlier batches may be in them, which nobody looks at: emptying a table costs several
    syncs of the disk, so only one that has grown is emptied.
    """
    wanted = {stage.name: stage for stage in stages}
    with connection.transaction():
        for name, made_by, size in _stages(connection, pipeline):
            stage = wanted.pop(_same(name, wanted), None)
            if stage is not None and made_by == _digest(stage):
                if size > KEPT_BYTES:
                    connection.execute(f"TRUNCATE {name}".encode())
                continue
            connection.execute(f"DROP TABLE {name}".encode())
            if stage is not None:
                wanted[stage.name] = stage
        for stage in wanted.values():
            connection.execute(stage.create().encode())
            comment = sql.SQL("COMMENT ON TABLE {} IS {}").format(
                sql.SQL(stage.name),
                sql.Literal(_digest(stage)),
            )
            connection.execute(comment)


def drop_stages(connection: SqlConnection, pipeline: str) -> None:
    """Have no stages any more."""
    for name, _, _ in _stages(connection, pipeline):
        connection.execute(f"DROP TABLE {name}".encode())


def _stages(connection: SqlConnection, pipeline: str) -> list[tuple[str, str | None, int]]:
    """Names of the stages that are there, what made them, and their size."""
    return connection.execute(
        "SELECT format('%%I.%%I', n.nspname, c.relname), obj_description(c.oid, 'pg_class'),"
        " pg_relation_size(c.oid) FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)",
        [SCHEMA, prefix(pipeline)],
    ).fetchall()


def _same(name: str, wanted: Iterable[str]) -> str:
    """The name as stages spell it: Postgres quotes only where it must."""
    plain = name.replace('"', "")
    return next((other for other in wanted if other.replace('"', "") == plain), "")


def _digest(stage: Stage) -> str:
    return hashlib.sha256(f"{stage.create()}{stage.rules}".encode()).hexdigest()[:16]


def _everywhere(column: Column) -> bool:
    """Whether every server knows the type under the same name."""
    element = column.element_oid or column.type_oid
    own = max(column.type_oid, element) >= oids.FIRST_USER_OID
    return bool(column.type_name) and not own and element not in NAMES_OF_OBJECTS
