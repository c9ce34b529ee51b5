"""Asking for a refresh: checked against the source at once, done by the capture."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import psycopg
from pglast import ast, parse_sql
from pglast.parser import ParseError
from pglast.stream import RawStream

from pgtide.config import Config
from pgtide.config.patterns import TablePatterns
from pgtide.errors import ConfigError, SourceError, TransientError
from pgtide.log.reader import Log
from pgtide.log.refreshes import ENDED, Refresh, RefreshStore, Standing
from pgtide.log.storage import Storage
from pgtide.postgres.connection import connect, translate
from pgtide.postgres.publication import publication_names
from pgtide.shape import Column
from pgtide.snapshot.condition import require_condition
from pgtide.snapshot.key_chunks import Chunk, KeyedTable, Limits, NoKey
from pgtide.snapshot.relations import relations_of, table_named

POLL_S = 0.2

# Types that Postgres and every target put into the same order, by oid: int2, int4, int8, date,
# timestamp, timestamptz, uuid.
_SAME_ORDER = frozenset({21, 23, 20, 1082, 1114, 1184, 2950})

# What a query may have that selects rows of a table; their order means nothing.
_OF_SELECTION = frozenset({"targetList", "fromClause", "whereClause", "sortClause"})


def store_of(config: Config) -> RefreshStore:
    """The refreshes of the log."""
    Log(config.log.path, config.log.storage)  # says best what is wrong with the path
    return RefreshStore(Storage(config.log.path, config.log.storage))


def ask(config: Config, request: Refresh) -> Refresh:
    """Ask for a refresh, unless the source says that it cannot be done."""
    limits = [request.where, request.keys, request.low or request.high]
    if sum(limit is not None for limit in limits) > 1:
        raise ConfigError("a refresh takes one of a condition, keys and a range")
    if request.replace and request.where is not None:
        raise ConfigError(
            "a condition cannot say which rows are gone",
            detail="Rows of a target that do not exist at the source fulfil no condition there.",
            hint="Replace the whole table, a range, or keys.",
        )
    if request.where is not None:
        require_condition(request.where, "the condition")
    store = store_of(config)
    asked = checked(config, request)
    store.add(asked)
    return asked


def checked(config: Config, request: Refresh) -> Refresh:
    """Plan the first chunk: says whether table, key and condition are what they should be.

    Returns the request of the table that is meant, or has the name now, whatever it is called when
    it is read, with keys and range as rows have them.
    """
    url = config.source.url.reveal()
    try:
        with connect(url, application_name="pgtide refresh") as conn:
            patterns = TablePatterns(config.source.tables)
            root = request.oid or table_named(conn, request.table, patterns)
            publications = tuple(publication_names(conn, config.source.slot))
            relations = relations_of(conn, root, patterns, publications)
    except psycopg.Error as exc:
        raise translate(exc) from exc
    if not relations:
        raise ConfigError(
            f"{request.table} is not published",
            detail="Rows that are read would not stay true: nobody tells of their changes.",
            hint="Run: pgtide init",
        )
    limits = Limits(request.where, request.low, request.high)
    for oid in relations:
        table = KeyedTable(url, publications, oid, limits)
        try:
            shape = table.layout()
            keys = [shape.columns[index] for index in shape.keys]
            if request.replace and (request.low is not None or request.high is not None):
                _require_same_order(keys[0])
            request = _as_rows_have_it(table, request, keys)
            table.try_out(Chunk(keys=request.keys[:1] if request.keys else None))
        finally:
            table.close()
    return replace(request, oid=root)


def _as_rows_have_it(table: KeyedTable, request: Refresh, columns: Sequence[Column]) -> Refresh:
    """Targets and the log compare texts, and a value has several."""
    for number, key in enumerate(request.keys or (), 1):
        if len(key) != len(columns):
            raise _not_a_key(f"key {number}", columns)
    keys = request.keys
    try:
        if keys:
            keys = tuple(dict.fromkeys(table.printed(keys)))
    except NoKey as found:
        raise _not_a_key(f"key {found.number + 1}", columns) from None
    low, high = (
        _end_of_range(table, end, f"the {name} end of the range", columns[:1])
        for name, end in (("low", request.low), ("high", request.high))
    )
    return replace(request, keys=keys, low=low, high=high)


def _end_of_range(
    table: KeyedTable, end: str | None, what: str, columns: Sequence[Column]
) -> str | None:
    try:
        return None if end is None else table.printed([(end,)])[0][0]
    except NoKey:
        raise _not_a_key(what, columns) from None


def _not_a_key(what: str, columns: Sequence[Column]) -> ConfigError:
    named = ", ".join(f"{column.name} ({column.type_name})" for column in columns)
    return ConfigError(f"{what} is not what the table's key has", hint=f"Give {named}, in order.")


def _require_same_order(key: Column) -> None:
    if key.type_oid not in _SAME_ORDER:
        raise ConfigError(
            "a range of this key cannot be replaced",
            detail=f"{key.name} is of type {key.type_name}, which targets may order otherwise.",
            hint="Leave --replace out, or replace the whole table.",
        )


def wait_for(
    config: Config,
    id: str,
    *,
    on_progress: Callable[[Standing], None] | None = None,
    timeout_s: float | None = None,
) -> Standing:
    """Wait until a refresh has ended; raises if it did not end well."""
    store, began = store_of(config), time.monotonic()
    while True:
        standing = store.standing(id)
        if on_progress is not None:
            on_progress(standing)
        if standing.state in ENDED:
            break
        if timeout_s is not None and time.monotonic() - began > timeout_s:
            raise TransientError(
                f"refresh {id} is not done yet",
                detail=f"It is {standing.state}, {standing.rows} rows are read.",
                hint="It goes on by itself while a capture runs: pgtide refresh --list",
            )
        time.sleep(POLL_S)
    if standing.state != "done":
        raise SourceError(f"the refresh was {standing.state}", detail=standing.message)
    return standing


def of_select(query: str, **options: Any) -> Refresh:
    """The refresh that a SELECT describes: all columns of one table, with or without a WHERE."""
    try:
        (statement,) = parse_sql(query)
        select: Any = statement.stmt
        (source,) = select.fromClause
        (wanted,) = select.targetList
        (columns,) = wanted.val.fields
    except (ParseError, ValueError, TypeError, AttributeError):
        raise _not_a_selection() from None
    rest = {name for name in select if getattr(select, name)} - _OF_SELECTION
    named = isinstance(source, ast.RangeVar) and source.schemaname and source.alias is None
    if rest or not named or not isinstance(columns, ast.A_Star):
        raise _not_a_selection()
    where = None if select.whereClause is None else RawStream()(select.whereClause)
    return Refresh(f"{source.schemaname}.{source.relname}", where=where, **options)


def _not_a_selection() -> ConfigError:
    return ConfigError(
        "the query does not select rows of one table",
        hint="Write SELECT * FROM schema.table WHERE …",
    )
