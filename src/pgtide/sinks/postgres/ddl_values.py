"""Values that a statement gives to rows that are there: which the target can give as well.

constant, or computed once (``DEFAULT now()``)   the log has the value: the column is added
                                                 with it, then gets its default
computed for each row (``gen_random_uuid()``,    the target's own until the source's follow as
serial, identity)                                ``read`` events, which replace rows by key
part of the key, or unique                       reads could not find the rows, or would meet
                                                 the target's values: rows are taken out first
in a table without a key                         no reads follow: refused if there are rows
in a table that becomes a partition, and did     refused if there are rows: reads bring those of
not have its rows as the whole table has them    the source, and take none away
in a column that rules change                    what rules make of the one value, be it NULL: the
                                                 column is added with that, then gets its default
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pglast import ast

from pgtide.position import Position
from pgtide.sinks.postgres.ddl_hiding import joined
from pgtide.sinks.postgres.ddl_names import CannotReplay, Names, Ruled, walk
from pgtide.sinks.postgres.ddl_payload import (
    Item,
    Payload,
    TableName,
    name_of,
    quoted,
    root_of,
)
from pgtide.sinks.postgres.ddl_statement import is_a, parse, printed

HIDDEN = "***"  # what capture puts in the place of a secret
SERIALS = frozenset({"smallserial", "serial", "bigserial", "serial2", "serial4", "serial8"})
VALUES = frozenset({"default", "type"})  # reasons for a rewrite that changes what rows say
UNIQUE = frozenset({"CONSTR_PRIMARY", "CONSTR_UNIQUE"})
# Types whose constants mean the same whenever and under whatever settings they are read.
SETTLED = re.compile(
    r"(text|name|uuid|jsonb?|xml|bytea|boolean|smallint|integer|bigint|numeric|real|oid"
    r'|double precision|inet|cidr|"char"|(character|bit)( varying)?)(\(.*\))?(\[\])?'
)
_ELEMENT = re.compile(r'\{(?:"((?:[^"\\]|\\.)*)"|((?:[^"\\]|\\.)*))\}', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Unread:
    """A table whose old rows get values, or are taken for rows, that no event will tell.

    ``probe``: an index on ``pg_temp.<table>`` that can be made if the target computes the same;
    None: it never does.
    """

    table: TableName
    probe: str | None
    name: str  # of the table at the source, by which expressions may speak of it
    root: TableName | None = None  # at the source, if it has become a partition of this one


@dataclass(frozen=True, slots=True)
class OldRows:
    """What an ALTER TABLE means for rows that are there."""

    changed: bool = False  # the tree holds values instead of expressions now
    defaults: tuple[tuple[str, str | None], ...] = ()  # of columns, to be set behind it; or dropped
    refreshed: tuple[TableName, ...] = ()  # tables whose values follow as ``read`` events
    emptied: bool = False  # take the rows out first
    unread: tuple[Unread, ...] = ()


def old_rows(payload: Payload, node: Any, names: Names, at: Position) -> OldRows:
    """Put known values into the tree of a statement, and tell about the others."""
    if is_a(node, ast.CreateStmt):
        return OldRows(defaults=tuple(_read_again(payload, node.tableElts or ())))
    if (partition := joined(payload, names)) is not None:
        table = name_of(partition)
        return OldRows(unread=(Unread(table, None, table[1], root_of(partition)),))
    if is_a(node, ast.AlterTableStmt) and node.objtype.name == "OBJECT_TABLE":
        return _altered(payload, node, names, at)
    return OldRows()


def _altered(payload: Payload, node: Any, names: Names, at: Position) -> OldRows:
    added = [cmd.def_ for cmd in node.cmds if cmd.subtype.name == "AT_AddColumn"]
    ruled = _ruled(payload, added, names, at)
    changed = False
    defaults: dict[str, str | None] = dict(_read_again(payload, added))
    defaults |= _defaults_set(payload, node.cmds)
    for column in added:
        value, default = _value(payload, column.colname), _default(column)
        kind = _fact(payload, column.colname, "type")
        if column.colname in ruled.values and not _has_no_default(column):
            value = ruled.values[column.colname]
        elif value is None or (default is not None and _is_plain(default.raw_expr, kind)):
            continue  # without a default of its own a value is that of its domain's
        _set_default(column, value)
        own = _fact(payload, column.colname, "default")
        defaults[column.colname] = None if own is None else _whole(own)
        changed = True
    rewritten = [
        (str(item["schema"]), str(item["table"]))
        for item in payload.facts["rewrites"]
        if not VALUES.isdisjoint(item["reasons"])
    ]
    if not rewritten:
        tables = [name_of(item) for item in payload.listed()] if ruled.unread else []
        unread = tuple(Unread(table, None, table[1]) for table in tables)
        return OldRows(changed, tuple(defaults.items()), unread=unread)
    computed = {c.colname for c in added if _is_computed(c, payload)}
    keyed, keyless = _by_key(payload, rewritten)
    return OldRows(
        changed,
        tuple(defaults.items()),
        refreshed=tuple(keyed),
        emptied=bool(keyed) and not computed.isdisjoint(_unique_columns(payload, node)),
        unread=tuple(
            Unread(table, None if computed else _probe(table, node.cmds), table[1])
            for table in keyless
        ),
    )


def _ruled(payload: Payload, added: list[Any], names: Names, at: Position) -> Ruled:
    """What rules make of the values: the target must not have them as they are."""
    about = {root_of(item) for item in payload.listed()}
    # Without a value and without a rewrite the default is NULL.
    rewritten = bool(payload.facts["rewrites"])
    given = [
        column.colname
        for column in added
        if _value(payload, column.colname) is not None
        or (rewritten and (_default(column) or _fact(payload, column.colname, "domain_default")))
    ]
    if not added or len(about) != 1:
        return Ruled()
    return names.ruled(about.pop(), at, given)


def _set_default(column: Any, value: str | None) -> None:
    """Have a column's definition give rows that are there this value."""
    default = _default(column)
    if default is None:
        # Parsed: one that is made here would not be equal to itself when it is read again.
        (default,) = parse("ALTER TABLE t ADD c text DEFAULT NULL").cmds[0].def_.constraints
        column.constraints = (*(column.constraints or ()), default)
    default.raw_expr = _constant(value)


def _constant(text: str | None) -> Any:
    if text is None:
        return ast.A_Const(isnull=True)
    return ast.A_Const(isnull=False, val=ast.String(sval=text))


def _by_key(payload: Payload, tables: list[TableName]) -> tuple[list[TableName], list[TableName]]:
    """The rewritten tables that have a key, and those that have none."""
    facts = {name_of(item): item for item in payload.relations()}
    keyed = [table for table in tables if table in facts and _key(facts[table])]
    return keyed, [table for table in tables if table not in keyed]


def _key(item: Item) -> list[int]:
    """Numbers of the columns by which rows are found."""
    return list(item["identity_key"] if item["replica_identity"] == "i" else item["primary_key"])


def _is_computed(column: Any, payload: Payload) -> bool:
    """Whether each row gets another value, had the table to be written anew for it."""
    if _is_serial(column) or any(
        c.contype.name == "CONSTR_IDENTITY" for c in column.constraints or ()
    ):
        return True
    default = _default(column)
    if default is not None:
        return not _is_plain(default.raw_expr, _fact(payload, column.colname, "type"))
    domains = _fact(payload, column.colname, "domain_default")
    return domains is not None and not _is_plain_text(domains)


def _has_no_default(column: Any) -> bool:
    """Whether a definition takes no DEFAULT: new rows get their value in another way."""
    return _is_serial(column) or any(
        c.contype.name in ("CONSTR_IDENTITY", "CONSTR_GENERATED") for c in column.constraints or ()
    )


def _is_serial(column: Any) -> bool:
    return column.typeName.names[-1].sval in SERIALS


def _is_plain(expression: Any, kind: str | None) -> bool:
    """Whether a default is a constant that means the same everywhere and at any time."""
    inner = expression.arg if isinstance(expression, ast.TypeCast) else expression
    if not isinstance(inner, ast.A_Const):
        return False
    return not isinstance(inner.val, ast.String) or bool(kind and SETTLED.fullmatch(kind))


def _is_plain_text(default: str) -> bool:
    """The same of one that the server printed, with its type if it is not a number."""
    tree = parse(f"SELECT {default}")
    return tree is not None and _is_plain(tree.targetList[0].val, default.rpartition("::")[2])


def _unique_columns(payload: Payload, node: Any) -> set[str]:
    """Columns that are in the key, or that the statement makes unique."""
    found: set[str] = set()
    for item in payload.relations():
        key = _key(item)
        found |= {column["name"] for column in item["columns"] if column["attnum"] in key}
    for command in node.cmds:
        match command.subtype.name, command.def_:
            case "AT_AddColumn", column:
                if any(c.contype.name in UNIQUE for c in column.constraints or ()):
                    found.add(column.colname)
            case "AT_AddConstraint", constraint if constraint.contype.name in UNIQUE:
                found |= {key.sval for key in constraint.keys or ()}
    return found


def _probe(table: TableName, commands: Any) -> str:
    """An index that the server makes only if new types need nothing but immutable functions."""
    tree = parse(f"CREATE INDEX ON pg_temp.{quoted(table[1])} ((1)) WHERE ROW() IS NOT NULL")
    values = [
        ast.TypeCast(
            arg=command.def_.raw_default or ast.ColumnRef(fields=(ast.String(sval=command.name),)),
            typeName=command.def_.typeName,
        )
        for command in commands
        if command.subtype.name == "AT_AlterColumnType"
    ]
    tree.whereClause.arg.args = tuple(values) or None
    return printed(tree)


def _default(column: Any) -> Any:
    """The DEFAULT of a column's definition."""
    found = (c for c in column.constraints or () if c.contype.name == "CONSTR_DEFAULT")
    return next(found, None)


def _value(payload: Payload, name: str) -> str | None:
    """The one value that all rows from before ADD COLUMN have."""
    values = {
        column["missing"]
        for item in payload.relations()
        for column in item["columns"]
        if column["name"] == name and column.get("missing") is not None
    }
    if len(values) > 1:
        raise CannotReplay(f"partitions have different values in the new column {name}")
    return _element(values.pop()) if values else None


def _element(array: str) -> str:
    """The element of an array that has one, in Postgres text."""
    match = _ELEMENT.fullmatch(array)
    if match is None:
        raise CannotReplay("the value of a new column cannot be read")
    return _whole(_ESCAPED.sub(r"\1", match[1] if match[1] is not None else match[2]))


def _whole(text: str) -> str:
    """A text of the log that capture took nothing out of."""
    if HIDDEN in text:
        raise CannotReplay("the log does not hold the secrets in it")
    return text


def _fact(payload: Payload, name: str, fact: str) -> Any:
    """What the catalog said of a column of the statement's table."""
    for item in payload.listed():
        for column in item["columns"]:
            if column["name"] == name:
                return column.get(fact)  # triggers of an older release say less
    return None


def _read_again(payload: Payload, elements: Any) -> Iterator[tuple[str, str]]:
    """Defaults in definitions that hold constants which depend on when and where they are read."""
    for column in elements:
        default = _default(column) if isinstance(column, ast.ColumnDef) else None
        if default is not None:
            yield from _unsettled(payload, column.colname, default.raw_expr)


def _defaults_set(payload: Payload, commands: Any) -> dict[str, str]:
    """The same for ALTER COLUMN … SET DEFAULT."""
    return {
        name: text
        for command in commands
        if command.subtype.name == "AT_ColumnDefault" and command.def_ is not None
        for name, text in _unsettled(payload, command.name, command.def_)
    }


def _unsettled(payload: Payload, name: str, expression: Any) -> Iterator[tuple[str, str]]:
    """``DEFAULT 'today'`` is the day on which the source read it: the catalog has that day."""
    text, kind = _fact(payload, name, "default"), _fact(payload, name, "type")
    constants = [node.val for node in walk(expression) if isinstance(node, ast.A_Const)]
    if not text or not any(isinstance(value, ast.String) for value in constants):
        return
    # The sequence of nextval() has its own name at the target, where its table has another.
    if not _is_plain(expression, kind) and not any(_is_nextval(node) for node in walk(expression)):
        yield name, _whole(text)


def _is_nextval(node: Any) -> bool:
    return is_a(node, ast.FuncCall) and node.funcname[-1].sval == "nextval"
