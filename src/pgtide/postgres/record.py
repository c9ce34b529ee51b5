"""The publication step: make the publications what they should be, and record how they look."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from psycopg import sql

from pgtide.config import Source
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.fingerprint import fingerprint, fingerprint_sql
from pgtide.postgres.publication import (
    Choice,
    create_sql,
    drop_sql,
    matches,
    publication_names,
    replace_sql,
)
from pgtide.postgres.settings import FORMAT, read_slot_settings, slot_key
from pgtide.postgres.step import Step


def publication_step(conn: SqlConnection, source: Source, choice: Choice, version: int) -> Step:
    """One transaction for publications and record: capture never sees them disagree."""
    existing = publication_names(conn, source.slot)
    current = fingerprint(conn, existing)
    wanted = [publication.name for publication in choice.publications]
    recorded = read_slot_settings(conn, source.slot)
    ours = set(recorded.publications) if recorded else set()
    statements = [drop_sql(name) for name in existing if name not in wanted and name in ours]
    for publication in choice.publications:
        if publication.name not in current:
            statements.append(create_sql(publication, version))
        elif not matches(publication, current[publication.name], version):
            statements += replace_sql(publication, version, current[publication.name])
    text = " and ".join(f"{p.name} for {p.describe()}" for p in choice.publications)
    same = recorded is not None and (
        recorded.publications == tuple(wanted)
        and recorded.fingerprint == {name: current.get(name) for name in wanted}
        and (recorded.keyless, recorded.tables) == (source.keyless, tuple(source.tables))
    )
    done = not statements and same
    statements.append(_record_sql(source, wanted, version))
    return Step("publication", f"publication {text}", tuple(statements), done=done)


def _record_sql(source: Source, names: Sequence[str], version: int) -> str:
    return (
        sql.SQL(
            "INSERT INTO pgtide.settings (key, value) VALUES ({key}, jsonb_build_object("
            "'format', {format}, 'publications', {names}::jsonb, 'keyless', {keyless},"
            " 'tables', {tables}::jsonb, 'fingerprint', {fingerprint}))\n"
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )
        .format(
            key=sql.Literal(slot_key(source.slot)),
            format=sql.Literal(FORMAT),
            names=_json(list(names)),
            keyless=sql.Literal(source.keyless),
            tables=_json(source.tables),
            fingerprint=fingerprint_sql(names, version),
        )
        .as_string(None)
    )


def _json(value: Any) -> sql.Literal:
    return sql.Literal(json.dumps(value))
