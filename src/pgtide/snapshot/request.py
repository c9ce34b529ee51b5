"""What is asked of a snapshot, checked before anything is locked or read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgtide.config import Config
from pgtide.config.patterns import TablePatterns, split_name
from pgtide.errors import ConfigError, SlotBusy
from pgtide.log.schema import CHANGES
from pgtide.log.snapshot import newest_snapshot
from pgtide.log.storage import Storage
from pgtide.postgres.connection import SqlConnection, connect, no_timeouts, translate
from pgtide.postgres.publication import publication_names
from pgtide.postgres.slot import capture_pids
from pgtide.snapshot.chunks import Verbatim
from pgtide.snapshot.condition import not_understood, require_condition
from pgtide.snapshot.keeper import APPLICATION, LOCK_TIMEOUT, not_free
from pgtide.snapshot.tables import Selection, select_tables


@dataclass(frozen=True)
class Request:
    """Which tables, and which of their rows; all of them by default."""

    tables: Sequence[str] = ()
    where: Mapping[str, str] | None = None  # SQL by name, schema.table

    @property
    def whole(self) -> bool:
        return not self.tables and not self.where


def requested(
    conn: SqlConnection, config: Config, request: Request, publications: Sequence[str]
) -> Selection:
    """The tables that a request means; raises if it means none, or the role may not read them."""
    patterns = [TablePatterns(config.source.tables)]
    if request.tables:
        patterns.append(TablePatterns(request.tables))
    selection = select_tables(conn, publications, patterns, request.where or {})
    if request.tables:
        check_patterns(patterns[-1], selection)
    check_conditions(conn, request.where or {}, selection)
    return selection


def check_request(config: Config, request: Request) -> Selection:
    """The same before Spark has started, and that nobody captures: the usual errors come fast."""
    slot = config.source.slot
    newest_snapshot(Storage(config.log.path, config.log.storage).child(CHANGES))
    with connect(config.source.url.reveal(), application_name=APPLICATION) as conn:
        try:
            if capture_pids(conn, slot):
                raise capturing()
            no_timeouts(conn, lock_timeout=LOCK_TIMEOUT)
            return requested(conn, config, request, publication_names(conn, slot))
        except psycopg.errors.LockNotAvailable as exc:
            raise not_free() from exc
        except psycopg.Error as exc:
            raise translate(exc) from exc


def capturing() -> SlotBusy:
    """The error for a slot that somebody else has."""
    return SlotBusy(
        "a capture is running",
        detail="A snapshot needs the slot for itself.",
        hint="While it runs, read tables again with: pgtide refresh TABLE",
    )


def parse_conditions(given: Sequence[str]) -> dict[str, str]:
    """``["orders=total > 5"]`` as SQL by ``schema.table``."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, condition = text.partition("=")
        if not equals or not condition.strip():
            raise ConfigError(
                f"{text!r} is not a condition for a table",
                hint='write TABLE=SQL, for example --where "public.orders=total > 5"',
            )
        parts = [part for part, _ in split_name(name.strip())]
        schema, table = parts if len(parts) == 2 else ("public", parts[0])
        found[f"{schema}.{table}"] = condition.strip()
    return found


def check_patterns(patterns: TablePatterns, selection: Selection) -> None:
    """Refuse a pattern that means none of the tables."""
    shapes = [*(table.shape for table in selection.tables), *selection.layouts]
    known = [(shape.schema, shape.table) for shape in shapes]
    known += [(shape.root_schema, shape.root_table) for shape in shapes if shape.root_oid]
    if missing := patterns.unmatched(known):
        raise ConfigError(
            f"no captured table matches {', '.join(missing)}",
            hint="Correct --tables; it chooses among the tables of source.tables.",
        )


def check_conditions(conn: SqlConnection, where: Mapping[str, str], selection: Selection) -> None:
    """Refuse a condition of an unknown table, and one that the server does not understand."""
    for name, condition in where.items():
        tables = [t for t in selection.tables if t.where == condition and t.heaps]
        tables = [
            t
            for t in tables
            if name in (t.shape.name, f"{t.shape.root_schema}.{t.shape.root_table}")
        ]
        if not tables:
            raise ConfigError(
                f"--where names {name}, which is not read",
                hint="Name a captured table, as schema.table, that --tables does not leave out.",
            )
        if not any(column.key for column in tables[0].shape.columns):
            raise ConfigError(
                f"--where names {name}, which has no primary key",
                detail="Rows that are in the log already would be there twice.",
                hint="Read the whole table: leave the condition out.",
            )
        what = f"the condition for {name}"
        require_condition(condition, what)
        heap = tables[0].heaps[0]
        query = sql.SQL("SELECT FROM ONLY {} WHERE ({}) LIMIT 0").format(
            sql.Identifier(heap.schema, heap.table), Verbatim(condition)
        )
        try:
            conn.execute(query)
        except psycopg.Error as exc:
            if not (exc.sqlstate or "").startswith("42"):  # syntax error or access rule violation
                raise
            raise not_understood(what, f"{exc.diag.message_primary}") from exc
