"""What one DDL event of the log means for a target: ``plan_ddl``. ``ddl_run`` does it.

An event of the log is one statement, whatever it made (``CREATE TABLE … serial`` is one, with the
sequence and the index among its ``objects``), so each statement runs once. The sink

* runs a ``Replay`` at the event's place between the rows. If ``rows_of`` is set, rows of the new
  table stand *before* it in the log (CREATE TABLE AS): run it before the first row of its
  transaction whose shape has that oid;
* ends the target's transaction behind the last row of the source's transaction that holds a
  ``Replay`` with ``commit_after``, and before anything later (a new enum value cannot be used in
  the transaction that added it; nor could the source use it in its own);
* expects rows of tables in ``refreshed`` to hold values of the target's own, or not to be there,
  until ``read`` events have brought the source's: a change of such a row is no conflict;
* runs nothing for an event that somebody left out (``pgtide skip``), and counts ``skipped``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pglast import ast

from pgtide.errors import TargetError
from pgtide.position import Position
from pgtide.sinks.postgres.ddl_hiding import defaults_behind, hide_defaults, refuse_unhidden
from pgtide.sinks.postgres.ddl_kinds import NEVER, DdlKinds, kind_of
from pgtide.sinks.postgres.ddl_names import (
    CannotReplay,
    Names,
    is_left_out,
    keep_selected,
    relations_of,
    routed,
)
from pgtide.sinks.postgres.ddl_payload import (
    TABLES,
    Payload,
    TableName,
    name_of,
    quoted,
    root_of,
)
from pgtide.sinks.postgres.ddl_statement import (
    NotPrintable,
    if_exists,
    inside_transaction,
    is_a,
    named_columns,
    named_index,
    parse,
    printed,
    switches,
    veiled,
    without_roles,
)
from pgtide.sinks.postgres.ddl_synthesis import created_empty, dropped
from pgtide.sinks.postgres.ddl_values import Unread, old_rows

SHOWN_CHARS = 400  # of a statement, in an error
# Statements that name no column and so do not mind what rules make of columns.
_WHOLE = (ast.DropStmt, ast.RenameStmt, ast.AlterObjectSchemaStmt)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a statement stands, for errors and what to do about them."""

    pipeline: str
    position: Position
    veiled: bool = False  # whether constants of the statement may be what rules hide

    def refusal(self, payload: Payload, message: str, detail: str) -> TargetError:
        """The error that names the statement and both ways on."""
        tag = payload.tag or "a DDL command"
        statement = payload.facts.get("statement") or payload.facts.get("query") or "not known"
        shown = veiled(statement) if self.veiled else statement
        shown = shown if len(shown) <= SHOWN_CHARS else shown[:SHOWN_CHARS] + " …"
        return TargetError(
            f"{tag} at {self.position} {message}",
            detail=f"{detail} The statement: {shown}",
            hint="Correct the target and start the pipeline again; or do there by hand what the "
            f"statement did, then: pgtide skip --pipeline {self.pipeline} {self.position}",
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One statement; ``pinned``: made from the catalog, with its own settings and full names."""

    sql: str
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """What one DDL event means for the target."""

    payload: Payload
    steps: tuple[Step, ...] = ()  # in order
    skipped: str = ""  # why nothing is run
    rows_of: int = 0  # oid of the source's table whose rows stand before the event
    commit_after: bool = False
    refreshed: tuple[TableName, ...] = ()  # at the target; see above
    emptied: tuple[TableName, ...] = ()  # whose rows are taken out before the steps
    unread: tuple[Unread, ...] = ()  # that must not have rows
    there: tuple[TableName, ...] = ()  # relations that must be there behind it
    gone: tuple[TableName, ...] = ()  # relations that must not
    switched: tuple[TableName, ...] = ()  # whose triggers and rules it has to find as the source's


def plan_ddl(facts: Mapping[str, Any], kinds: DdlKinds, names: Names, place: Place) -> Replay:
    """What a payload means for the target; TargetError when that cannot be told."""
    payload = Payload(facts)
    text = payload.statement
    node = parse(text) if text else None
    try:
        if reason := _left_out(payload, node, kinds, names):
            return Replay(payload, skipped=reason)
        if facts.get("unknown"):
            raise CannotReplay(f"its facts are not known ({facts.get('error') or 'no reason'})")
        if payload.tag in ("CREATE TABLE AS", "SELECT INTO"):
            return _table_from_query(payload, node, names)
        if text is None or payload.tag == "DROP OWNED":
            return _unstated(payload, names)
        return _stated(payload, text, node, kinds, names, place.position)
    except CannotReplay as reason:
        raise place.refusal(payload, "cannot be replayed", f"{_sentence(reason)}") from None
    except NotPrintable:
        detail = "It has to be changed for the target, and would not be the same statement."
        raise place.refusal(payload, "cannot be replayed", detail) from None


def _sentence(reason: CannotReplay) -> str:
    text = str(reason)
    return text[:1].upper() + text[1:] + "."


def _left_out(payload: Payload, node: Any, kinds: DdlKinds, names: Names) -> str:
    """The documented reason for which nothing is to be run, or ""."""
    if kinds.none:
        return "the target takes no DDL"
    if payload.marks.get("no_op"):
        return "it did nothing (IF EXISTS, IF NOT EXISTS)"
    kind = kind_of(payload.tag, node)
    if payload.tag == "DROP OWNED":
        drops = [item for item in payload.dropped if item["original"]]
        return "" if drops else "kind owner is not selected"
    if kind in NEVER:
        return NEVER[kind]
    if payload.tag and not kinds.selects(kind):
        return f"kind {kind} is not selected"
    if is_left_out(payload, kind, node, names):
        return "the pipeline does not select the table"
    return ""


def _table_from_query(payload: Payload, node: Any, names: Names) -> Replay:
    (item,) = payload.listed()
    _refuse_reshaped(payload, node, names)
    table = names.target(name_of(item))
    statement = created_empty(item, table, node)
    steps = (Step(statement, pinned=True),)
    return Replay(payload, steps, rows_of=int(item["oid"]), there=(table,))


def _unstated(payload: Payload, names: Names) -> Replay:
    """A command whose text is not known, or holds what was redacted."""
    if payload.facts.get("redacted"):
        raise CannotReplay("the log does not hold the secrets in it")
    statements = dropped(payload)
    if names.routed:
        raise CannotReplay("its text is not known, and routes give tables other names")
    steps = tuple(Step(statement, pinned=True) for statement in statements)
    return Replay(payload, steps, gone=_gone(payload, names))


def _stated(
    payload: Payload, text: str, node: Any, kinds: DdlKinds, names: Names, at: Position
) -> Replay:
    _refuse_reshaped(payload, node, names)
    _refuse_waiting(payload, node, names)
    refuse_unhidden(payload, node, names)
    rows = old_rows(payload, node, names, at)
    changed = rows.changed
    changed |= hide_defaults(payload, node, names)
    changed |= keep_selected(payload, node, names)
    if not kinds.selects("owner"):
        changed |= without_roles(node, payload.made_schema())
    if is_a(node, ast.DropStmt) and not node.objects:
        return Replay(payload, skipped="the target has nothing of what it drops")
    if changed:
        text = printed(node)
    text = inside_transaction(text, node)
    if not names.routed:
        # An index that failed to be built CONCURRENTLY was never told of, and has taken a name.
        if _drops_index(node):
            text = if_exists(text)
        elif is_a(node, ast.IndexStmt) and node.idxname is None:
            text = named_index(text, quoted(payload.made_index()))
    there = tuple(dict.fromkeys(names.target(name_of(item)) for item in _present(payload, names)))
    steps = [Step(statement) for statement in routed(text, parse(text), payload, names)]
    steps += [
        Step(f"ALTER TABLE {quoted(*table)} ALTER {quoted(column)} {_default_is(default)}", True)
        for table, column, default in defaults_behind(rows.defaults, payload, node, names)
    ]
    return Replay(
        payload,
        tuple(steps),
        commit_after=is_a(node, ast.AlterEnumStmt) and node.oldVal is None,
        refreshed=tuple(names.target(table) for table in rows.refreshed),
        emptied=there[:1] if rows.emptied else (),
        unread=tuple(replace(unread, table=names.target(unread.table)) for unread in rows.unread),
        there=there,
        gone=_gone(payload, names),
        switched=_related(payload, names) if switches(node) else (),
    )


def _default_is(default: str | None) -> str:
    return "DROP DEFAULT" if default is None else f"SET DEFAULT {default}"


def _drops_index(node: Any) -> bool:
    index = is_a(node, ast.DropStmt) and node.removeType.name == "OBJECT_INDEX"
    return bool(index and not node.missing_ok)


def _refuse_reshaped(payload: Payload, node: Any, names: Names) -> None:
    """Tables whose columns rules change are not what a statement about columns means."""
    columns = not is_a(node, *_WHOLE) or (
        is_a(node, ast.RenameStmt) and node.renameType.name == "OBJECT_COLUMN"
    )
    about = relations_of(payload, kind_of(payload.tag, node)) if columns else []
    named = named_columns(node)  # they may be there no more
    for item in (item for item in about if item.get("kind") in TABLES):
        known = {column["name"] for column in item["columns"]}
        if names.reshapes(root_of(item), known | named):
            raise CannotReplay("rules leave out, rename or change columns of the table")


def _refuse_waiting(payload: Payload, node: Any, names: Names) -> None:
    """What a table lacks that is parked has the schema's old name: it could not come any more."""
    if not is_a(node, ast.RenameStmt) or node.renameType.name != "OBJECT_SCHEMA":
        return
    for table in (root_of(item) for item in payload.relations() if item["kind"] in TABLES):
        if names.chosen(table) and not names.selects(table):
            name = ".".join(table)
            raise CannotReplay(f"the table {name} is parked: resume it first (pgtide resume)")


def _present(payload: Payload, names: Names) -> list[Mapping[str, Any]]:
    """The relations that the statement is about and that the target has to have behind it."""
    return [item for item in payload.listed() if names.selects(root_of(item))]


def _related(payload: Payload, names: Names) -> tuple[TableName, ...]:
    """The tables that it is about, be it by one of their parts."""
    found = (item for item in payload.relations() if names.selects(root_of(item)))
    return tuple(names.target(name_of(item)) for item in found)


def _gone(payload: Payload, names: Names) -> tuple[TableName, ...]:
    found = (item for item in payload.dropped_relations() if names.selects(root_of(item)))
    return tuple(names.target(name_of(item)) for item in found)
