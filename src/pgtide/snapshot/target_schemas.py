"""``pgtide snapshot --schema``: the source's schema at Postgres targets, as it is at the snapshot.

    hold ──▶ pg_dump in the snapshot, rehearse ──▶ [copy rows] ──▶ make ──▶ log commit ──▶ commit

Each target is made in one transaction that ends right behind the log's commit, so whatever dies
before leaves an empty target, and all of it is simply done again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import psycopg

from pgtide.config import Config, TablePatterns
from pgtide.config.model import Pipeline
from pgtide.errors import ConfigError, TargetUnavailable
from pgtide.log.reader import Log
from pgtide.log.storage import Storage
from pgtide.pipeline.lease import Lease
from pgtide.pipeline.state_file import StateFile
from pgtide.position import Lsn, Position
from pgtide.postgres.catalog import selects
from pgtide.postgres.connection import SqlConnection, connect, translate
from pgtide.postgres.pg_dump import dump_schema, find_pg_dump
from pgtide.shape import Shape
from pgtide.sinks.postgres.reaching import connect_target
from pgtide.sinks.postgres.session import database_of
from pgtide.sinks.postgres.source_parts import read_parts
from pgtide.sinks.postgres.target_schema import TargetSchema
from pgtide.snapshot.keeper import APPLICATION, Held
from pgtide.snapshot.tables import Selection


@dataclass
class TargetSchemas:
    """The schemas of some pipelines' targets."""

    config: Config
    pipelines: Sequence[str]
    schemas: dict[str, TargetSchema] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def check(self, selection: Selection) -> None:
        """What can be known before anything is locked or read."""
        for name in self.pipelines:
            settings = self.config.pipelines[name]
            refuse_changed_layouts(name, settings, selection)
        with connect(self.config.source.url.reveal(), application_name=APPLICATION) as source:
            find_pg_dump(source.info.server_version // 10_000)
            source_database = database_of(source)
        seen: dict[object, str] = {}
        for name in self.pipelines:
            with self._connect(name) as target:
                database = database_of(target)
            if database == source_database:
                raise ConfigError(
                    f"the target of pipeline {name} is the source",
                    hint=f"Name another database in pipelines.{name}.sink.url.",
                )
            if database in seen:
                raise ConfigError(
                    f"pipelines {seen[database]} and {name} have the same target",
                    hint="Make it for one of them: pgtide snapshot --schema --pipeline NAME",
                )
            seen[database] = name

    def read(self, source: SqlConnection, held: Held) -> None:
        """Dump the schema in the snapshot, and try it at each target without leaving a trace."""
        self.notes, self.schemas = [], {}
        version = source.info.server_version
        program = find_pg_dump(version // 10_000)
        for name in self.pipelines:
            patterns = [
                TablePatterns(self.config.source.tables),
                TablePatterns(self.config.pipelines[name].tables),
            ]
            selected = [
                oid
                for table in held.selection.tables
                if selects(patterns[1], table.shape)
                for oid in (table.shape.oid, *(heap.oid for heap in table.heaps))
            ]
            parts = read_parts(source, selected, patterns)
            before, after = (
                dump_schema(
                    program,
                    self.config.source.url.reveal(),
                    source,
                    section=section,
                    snapshot=held.snapshot,
                    exclude_schemas=parts.other_schemas,
                    exclude_tables=parts.other_relations,
                )
                for section in ("pre-data", "post-data")
            )
            hidden = tuple(_hidden(self.config.pipelines[name], held.selection))
            schema = replace(TargetSchema.of(before, after, parts, version), hidden=hidden)
            with self._connect(name) as target, _speaking_of(name):
                schema.check(target)
                found = schema.rehearse(target)
            self.schemas[name] = schema
            self.notes += [f"{note} (pipeline {name})" for note in (*schema.notes, *found)]

    @contextmanager
    def making(self, point: Lsn) -> Iterator[None]:
        """Make all targets, and commit them on leaving; after an error they are as before."""
        source = Log(self.config.log.path, self.config.log.storage).source
        log = "/".join(source.identity.values())
        # What is older than the snapshot's rows is in the schema, or in the rows.
        position = Position(Lsn(point - 2))
        with ExitStack() as stack:
            targets: dict[str, SqlConnection] = {}
            for name, schema in self.schemas.items():
                targets[name] = stack.enter_context(self._connect(name))
                with _speaking_of(name):
                    targets[name].execute("BEGIN")
                    schema.check(targets[name])
                    schema.begin(targets[name], name, position, log)
                stack.enter_context(Lease(self._storage, name))
            yield
            for name, target in targets.items():
                # Where a pipeline was, and what was parked, is of a target that is there no more.
                StateFile(self._storage, name).drop()
                try:
                    target.execute("COMMIT")
                except psycopg.Error as exc:
                    raise TargetUnavailable(
                        f"the schema of pipeline {name} was not made",
                        detail=f"The snapshot is in the log; the target: {translate(exc).message}.",
                        hint=f"Run: pgtide snapshot --schema --pipeline {name}",
                    ) from exc

    @property
    def _storage(self) -> Storage:
        return Storage(self.config.log.path, self.config.log.storage)

    def _connect(self, name: str) -> SqlConnection:
        return connect_target(self.config, name, application_name=APPLICATION)


def _hidden(settings: Pipeline, selection: Selection) -> Iterator[tuple[tuple[str, str], str]]:
    """Columns whose values rules change: their defaults stay at the source."""
    for shape in _shapes(selection):
        partition = bool(shape.root_oid)  # known to rules by its root's name
        schema = shape.root_schema if partition else shape.schema
        table = shape.root_table if partition else shape.table
        for rule in settings.rules:
            fits = TablePatterns([rule.table]).matches(schema, table)
            names = {column.name for column in shape.columns}
            if fits and rule.transform is not None and rule.transform.column in names:
                yield (shape.schema, shape.table), rule.transform.column


def _shapes(selection: Selection) -> list[Shape]:
    """All tables of a selection: rules name those that have partitions, which are not read."""
    return [*(table.shape for table in selection.tables), *selection.layouts]


@contextmanager
def _speaking_of(pipeline: str) -> Iterator[None]:
    """What goes wrong here went wrong at a target."""
    try:
        yield
    except psycopg.Error as exc:
        raise TargetUnavailable(
            f"the target of pipeline {pipeline} failed",
            detail=f"It says: {translate(exc).message}.",
        ) from exc


def refuse_changed_layouts(name: str, settings: Pipeline, selection: Selection) -> None:
    """Refuse rules and routes that make tables of the target other than those of the source."""
    for shape in _shapes(selection):
        if not selects(TablePatterns(settings.tables), shape):
            continue
        here = shape.schema, shape.table
        changing = [
            rule
            for rule in settings.rules
            if TablePatterns([rule.table]).matches(*here)
            and (rule.exclude or rule.include or rule.rename)
        ]
        routed = [
            route
            for route in settings.routes
            if TablePatterns([route.table]).matches(*here)
            and (route.rename or route.target(*here) != here)
        ]
        if changing or routed:
            raise ConfigError(
                f"pipeline {name} does not keep {shape.name} as it is",
                detail="A rule or route gives the table or its columns other names, or fewer "
                "columns; the source's schema would not fit.",
                hint="Make the target's tables yourself, and leave out --schema.",
            )
