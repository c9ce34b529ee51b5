"""A target on a log that retention has cut: what the log no longer tells is read at the source.

The pipeline begins where the log does, and every table is refreshed. Until its refresh has come,
updates that lack a large value are passed over, as in any table that is read (``Completion``).
Of tables that the source no longer has nobody can bring the rest: they are left out.
"""

from __future__ import annotations

from pgtide.config.model import Config
from pgtide.config.patterns import TablePatterns
from pgtide.config.sinks import DeltaSettings
from pgtide.errors import LogGap
from pgtide.log.reader import Log
from pgtide.log.refreshes import Refresh, RefreshStore
from pgtide.log.storage import Storage
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection, connect
from pgtide.shape import Shape
from pgtide.sinks.delta.gone import Gone
from pgtide.sinks.delta.lake import source_text
from pgtide.sinks.target_storage import open_storage
from pgtide.snapshot.incremental import captured_tables

_NOW = """SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                 ELSE pg_current_wal_insert_lsn() END::text"""


def tables_to_read(config: Config, name: str) -> list[str]:
    """The tables of a pipeline as they are now; LogGap where one cannot be read again."""
    with _connect(config) as conn:
        return sorted(shape.name for shape in _tables(conn, config, name))


def have_read(config: Config, name: str, sink: DeltaSettings) -> Position:
    """Ask for all tables of a pipeline; where it is to begin meanwhile."""
    storage = Storage(config.log.path, config.log.storage)
    log = Log(config.log.path, config.log.storage)
    # First what the log knows: a table that is made from here on is whole in the log.
    known = {shape.home for shape in log.shapes().values()}
    with _connect(config) as conn:
        tables = _tables(conn, config, name)
        (now,) = conn.execute(_NOW).fetchone() or ("0/0",)
    gone = Gone(open_storage(sink.path, sink.storage), source_text(log.source))
    for relation in known - {table.home for table in tables}:
        gone.note(relation, Position.end_of(Lsn.parse(now)))
    store = RefreshStore(storage)
    for table in tables:
        store.add(Refresh(table.name, oid=table.oid, reason="replay"))
    return Position(log.snapshot().complete_from)


def _connect(config: Config) -> SqlConnection:
    return connect(config.source.url.reveal(), application_name="pgtide replay")


def _tables(conn: SqlConnection, config: Config, name: str) -> list[Shape]:
    selected = TablePatterns(config.pipelines[name].tables)
    captured = captured_tables(conn, TablePatterns(config.source.tables))
    tables = [shape for shape in captured if selected.matches(*shape.home_name)]
    if without_key := sorted(shape.name for shape in tables if not shape.keys):
        raise LogGap(
            "the log does not go back far enough, and tables cannot be read again",
            detail=f"Rows are told apart by their key; these have none: {', '.join(without_key)}.",
            hint="Give them a primary key, or leave them out of the pipeline's tables; "
            "to have them, begin a new log.",
        )
    return tables
