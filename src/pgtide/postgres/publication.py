"""The publications of a slot: which ones there should be, how they look, who changed them.

``FOR ALL TABLES`` or ``FOR TABLES IN SCHEMA`` wherever possible, filtered in
capture, so that a new table is there from its first row; a list otherwise. A
publication never carries updates of a table that could not stand it: such
tables are refused, altered by consent, or published for inserts alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from psycopg import sql

from pgtide.config.patterns import TablePatterns
from pgtide.errors import PrivilegeMissing
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.fingerprint import fingerprint as fingerprint
from pgtide.postgres.identity import TableIdentity, missing, read_identities
from pgtide.postgres.rights import may_publish_everything

Keyless = Literal["refuse", "full", "insert"]

EVERYTHING = "insert, update, delete, truncate"
INSERTS = "insert, truncate"
NAME_MAX_BYTES = 63

LATER = "tables created later are not captured until pgtide init runs again"
UNGUARDED = (
    "a list, because without the DDL trigger nothing would give a later table the replica"
    f" identity its UPDATE needs under a wider publication: {LATER}"
)


@dataclass(frozen=True, slots=True)
class Publication:
    """One publication as it should be: a scope, and what it carries."""

    name: str
    scope: Literal["all", "schemas", "tables"]
    schemas: tuple[str, ...] = ()
    tables: tuple[TableIdentity, ...] = ()
    publish: str = EVERYTHING

    def describe(self) -> str:
        """What it covers, in words."""
        if self.scope == "all":
            return "all tables"
        if self.scope == "schemas":
            return f"all tables in {', '.join(self.schemas)}"
        what = f"{len(self.tables)} listed table{'' if len(self.tables) == 1 else 's'}"
        return what if self.publish == EVERYTHING else f"{what}, inserts only"


@dataclass(frozen=True, slots=True)
class Choice:
    """The publications that fit, the tables that get REPLICA IDENTITY FULL, and why."""

    publications: tuple[Publication, ...]
    full: tuple[TableIdentity, ...] = ()
    notes: tuple[str, ...] = ()


def insert_name(slot: str) -> str:
    """The name of the second publication, for tables that can only be inserted into."""
    return f"{slot[: NAME_MAX_BYTES - len('_insert')]}_insert"


def publication_names(conn: SqlConnection, slot: str) -> list[str]:
    """Those of the slot's publications that exist, the main one first."""
    names = [slot, insert_name(slot)]
    rows = conn.execute("SELECT pubname FROM pg_publication WHERE pubname = ANY(%s)", [names])
    found = {name for (name,) in rows}
    return [name for name in names if name in found]


def choose(
    conn: SqlConnection,
    slot: str,
    patterns: TablePatterns,
    *,
    keyless: Keyless,
    version: int,
    guarded: bool,
) -> Choice:
    """Decide which publications the slot needs; IdentityMissing when policy forbids all.

    ``guarded`` says that the DDL trigger is there, which gives later tables a
    replica identity; without it a wide publication would break them.
    """
    tables = read_identities(conn)
    wanted = [table for table in tables if table.selected(patterns)]
    bad = [table for table in wanted if not table.usable]
    if keyless == "refuse" and bad:
        raise missing(bad)
    if keyless == "insert" and bad:
        return _split(slot, patterns, wanted)
    broad, note = _broad(conn, slot, patterns, version) if guarded else (None, UNGUARDED)
    if broad is None:
        return _listed(slot, patterns, wanted, bad, note)
    # A root's partitions are published with it, whatever schema they are in.
    covered = [
        table
        for table in tables
        if broad.scope == "all" or {table.schema, table.root_schema} & set(broad.schemas)
    ]
    concerned = [table for table in covered if not table.usable]
    if keyless == "full":
        if hopeless := [table for table in concerned if not table.full_helps]:
            if any(table in wanted for table in hopeless):
                raise missing(hopeless)
        else:
            _require_ownership(concerned, "alter")
            return Choice((broad,), full=tuple(concerned))
    if concerned:
        names = ", ".join(table.name for table in concerned)
        return _listed(
            slot,
            patterns,
            wanted,
            bad,
            f"a list, because {names} could not be updated under a wider publication: {LATER}",
        )
    return Choice((broad,))


def create_sql(publication: Publication, version: int) -> str:
    """The CREATE PUBLICATION statement."""
    scope: sql.Composable = sql.SQL("")
    if publication.scope == "all":
        scope = sql.SQL(" FOR ALL TABLES")
    elif publication.scope == "schemas":
        names = sql.SQL(", ").join(map(sql.Identifier, publication.schemas))
        scope = sql.SQL(" FOR TABLES IN SCHEMA {}").format(names)
    elif publication.tables:
        scope = sql.SQL(" FOR TABLE {}").format(_table_list(publication.tables))
    return (
        sql.SQL("CREATE PUBLICATION {}{} WITH ({})")
        .format(sql.Identifier(publication.name), scope, _options(publication, version))
        .as_string(None)
    )


def replace_sql(publication: Publication, version: int, current: Mapping[str, Any]) -> list[str]:
    """The statements that make an existing publication what it should be."""
    name = sql.Identifier(publication.name)
    listed = not current["all_tables"] and not current["schemas"]
    if publication.scope == "tables" and listed and publication.tables:
        tables = _table_list(publication.tables)
        return [
            sql.SQL("ALTER PUBLICATION {} SET TABLE {}").format(name, tables).as_string(None),
            sql.SQL("ALTER PUBLICATION {} SET ({})")
            .format(name, _options(publication, version))
            .as_string(None),
        ]
    # Another scope. Both in one transaction: at no position is there no publication.
    return [drop_sql(publication.name), create_sql(publication, version)]


def drop_sql(name: str) -> str:
    """The DROP PUBLICATION statement."""
    return sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)).as_string(None)


def matches(publication: Publication, current: Mapping[str, Any], version: int) -> bool:
    """Whether the publication is already what it should be."""
    flags = {part.strip() for part in publication.publish.split(",")}
    generated = current["options"].get("pubgencols")
    return (
        current["all_tables"] == (publication.scope == "all")
        and sorted(current["schema_names"]) == sorted(publication.schemas)
        and sorted(map(int, current["tables"])) == sorted(t.oid for t in publication.tables)
        and not any(current["tables"].values())
        and {f for f in ("insert", "update", "delete", "truncate") if current["options"][f"pub{f}"]}
        == flags
        and not current["options"]["pubviaroot"]
        and (version < 180_000 or generated == "s")
    )


def _split(slot: str, patterns: TablePatterns, wanted: Sequence[TableIdentity]) -> Choice:
    """Two lists: with all operations, and with inserts alone for what has no identity."""
    entries = _entries(patterns, wanted)
    spoiled = {_top(patterns, table) for table in wanted if not table.usable}
    keyed = tuple(table for table in entries if table.oid not in spoiled)
    keyless = tuple(table for table in entries if table.oid in spoiled)
    _require_ownership(entries, "publish")
    names = ", ".join(table.name for table in keyless)
    return Choice(
        (
            Publication(slot, "tables", tables=keyed),
            Publication(insert_name(slot), "tables", tables=keyless, publish=INSERTS),
        ),
        notes=(
            f"updates and deletes of {names} are not captured",
            LATER,
        ),
    )


def _listed(
    slot: str,
    patterns: TablePatterns,
    wanted: Sequence[TableIdentity],
    bad: Sequence[TableIdentity],
    note: str,
) -> Choice:
    if hopeless := [table for table in bad if not table.full_helps]:
        raise missing(hopeless)
    entries = _entries(patterns, wanted)
    _require_ownership([*entries, *bad], "publish")
    publication = Publication(slot, "tables", tables=tuple(entries))
    return Choice((publication,), full=tuple(bad), notes=(note,))


def _broad(
    conn: SqlConnection, slot: str, patterns: TablePatterns, version: int
) -> tuple[Publication | None, str]:
    """The widest scope that the patterns call for, if it is there or the role may create it."""
    broad = Publication(slot, "all")
    schemas = patterns.schemas()
    if schemas is not None and version >= 150_000:
        query = "SELECT nspname FROM pg_namespace WHERE nspname = ANY(%s)"
        existing = {name for (name,) in conn.execute(query, [list(schemas)])}
        if existing == schemas:  # otherwise one of them is still to come
            broad = Publication(slot, "schemas", schemas=tuple(sorted(schemas)))
    current = fingerprint(conn, [slot]).get(slot)
    if (current and matches(broad, current, version)) or may_publish_everything(conn):
        return broad, ""
    return None, f"a list, because this role may not create FOR ALL TABLES: {LATER}"


def _entries(patterns: TablePatterns, wanted: Sequence[TableIdentity]) -> list[TableIdentity]:
    """What a list has to name: a root stands for its partitions."""
    return [table for table in wanted if not table.by_root(patterns)]


def _top(patterns: TablePatterns, table: TableIdentity) -> int:
    return table.root_oid if table.by_root(patterns) else table.oid


def _require_ownership(tables: Sequence[TableIdentity], verb: str) -> None:
    if foreign := sorted({table.name for table in tables if not table.owned}):
        raise PrivilegeMissing(
            f"this role may not {verb} {len(foreign)} of the tables",
            detail=f"Only their owner may: {', '.join(foreign)}.",
            hint="Set source.admin_url to the owner of the tables or a superuser.",
        )


def _table_list(tables: Sequence[TableIdentity]) -> sql.Composed:
    # ONLY: an inheritance child is published when its own name is selected.
    return sql.SQL(", ").join(
        sql.SQL("{}" if table.kind == "p" else "ONLY {}").format(table.identifier)
        for table in tables
    )


def _options(publication: Publication, version: int) -> sql.Composed:
    more = ", publish_generated_columns = stored" if version >= 180_000 else ""
    return sql.SQL("publish = {}, publish_via_partition_root = false" + more).format(
        sql.Literal(publication.publish)
    )
