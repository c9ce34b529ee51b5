"""The statements for single events, in PL/pgSQL: ``event`` is the row of the loop.

An event finds its row by the key that the row had before it, ``o…``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from psycopg import sql

from pgtide.position import Position
from pgtide.sinks.postgres.stages import Stage
from pgtide.sinks.postgres.statements import Chosen, Statements, quoted

_HERE = "s.lsn = event.lsn AND s.seq = event.seq AND s.load = event.load"
CONFLICT = "PGT01"
"""SQLSTATE of an event that ends the unit; its detail is JSON."""


@dataclass(frozen=True)
class EventStatements(Statements):
    """The statements for one stage and its table."""

    any_identity: bool = False  # whether columns GENERATED ALWAYS are updated as well
    cascades: bool = False  # whether rows of other tables go with its rows
    cascaded: bool = False  # whether its rows go with those of other tables
    follows: bool = False  # whether its rows change with those of other tables
    changes: bool = False  # whether rows of other tables change with its rows
    changing: frozenset[str] = frozenset()  # its columns that do so themselves

    def body(self, pipeline: str, on_conflict: str, *, lenient: bool) -> str:
        """What is done with an event, as statements of PL/pgSQL."""
        if not self.stage.keys:
            return self._keyless(pipeline, on_conflict)
        return f"""
IF event.kind = 'd' THEN
    {self._delete}
    GET DIAGNOSTICS touched = ROW_COUNT;
    {self._one_only}
    {"cascaded_at := event.lsn;" if self.cascades else ""}
    {self._changes_others}
    IF touched = 0 AND event.known = 'p' AND {self._expected} THEN
        {self._conflict(pipeline, on_conflict, "delete_missing")}
    END IF;
ELSIF event.known = 'a' THEN
    IF {self._there} THEN
        {self._conflict(pipeline, on_conflict, "insert_exists")}
        {self._update("v") if on_conflict == "apply" else "NULL;"}
    ELSE
        {self._insert}
    END IF;
ELSE
    {self._update()}
    GET DIAGNOSTICS touched = ROW_COUNT;
    {self._one_only}
    {self._changes_others}
    {self._moved_along}
    IF touched = 0 AND event.kind <> 'p' THEN
        IF event.known = 'p' THEN
            {self._conflict(pipeline, on_conflict, "update_missing")}
        END IF;
        IF event.known = 'r' OR '{on_conflict}' = 'apply' THEN
            IF event.unsent IS NULL THEN
                {self._over_another if on_conflict == "apply" else self._insert}
            ELSE
                {self._pass_over if lenient else self._stop("not_whole")}
            END IF;
        END IF;
    END IF;
END IF;"""

    @property
    def _pass_over(self) -> str:
        """The row is still to be read, and is whole then."""
        return f"PERFORM {self.count_passed(f'current_setting({self._passed})::bigint + 1')};"

    def count_passed(self, count: str = "0") -> str:
        """SQL: notes how many changes were passed over, from which on they are counted."""
        return f"set_config({self._passed}, ({count})::text, true)"

    @property
    def passed(self) -> str:
        """SQL: how many changes were passed over."""
        return f"SELECT current_setting({self._passed})::bigint"

    @property
    def _passed(self) -> str:
        return f"'pgtide.passed_{self.stage.number}'"

    @property
    def _one_only(self) -> str:
        """Whatever is to become of conflicts: which row is meant nobody can tell."""
        return f"IF touched > 1 THEN {self._stop('several_rows')} END IF;"

    @property
    def _changes_others(self) -> str:
        return "changed_at := event.lsn;" if self.changes else ""

    @property
    def _moved_along(self) -> str:
        """A row whose key went along with another's is found under its new key."""
        if not self.follows:
            return ""
        return (
            f"IF touched = 0 THEN {self._update('v')} GET DIAGNOSTICS touched = ROW_COUNT; END IF;"
        )

    @property
    def _over_another(self) -> str:
        """A row that was to move to a key which another one has at the target becomes that one."""
        return (
            f"{self._update('v')} GET DIAGNOSTICS touched = ROW_COUNT;"
            f" IF touched = 0 THEN {self._insert} END IF;"
        )

    @property
    def _expected(self) -> str:
        """Whether a row must be there: not if it went with another one of its transaction."""
        return "cascaded_at IS DISTINCT FROM event.lsn" if self.cascaded else "true"

    def _keyless(self, pipeline: str, on_conflict: str) -> str:
        here, there = self._there_is(self.columns), self._staged(self.columns)
        return f"""
IF event.kind = 'd' THEN
    DELETE FROM {self.table.rows} t WHERE (t.tableoid, t.ctid) = (
        SELECT t.tableoid, t.ctid FROM {self.table.rows} t, {self.stage.name} s
        WHERE {_HERE} AND s.copies = -1 AND {here} = {there}
        {self._same_print} LIMIT 1);
    GET DIAGNOSTICS touched = ROW_COUNT;
    {self._changed_along}
    IF touched = 0 AND {self._expected} THEN
        {self._conflict(pipeline, on_conflict, "delete_missing")}
    END IF;
ELSIF in_place = event.seq THEN
    in_place := NULL;
ELSE
    INSERT INTO {self.table.name} {self._named} OVERRIDING SYSTEM VALUE
    SELECT {self._values} FROM {self.stage.name} s WHERE {_HERE} AND s.copies = 1;
END IF;"""

    @property
    def _changed_along(self) -> str:
        """A row without a key that changed along with another is known by its other columns.

        Those are made as the update says, the target has done the rest. Or it is deleted.
        """
        if not self.changing:
            return ""
        others = [(i, column) for i, column in self.columns if column.name not in self.changing]
        theirs = [(i, column) for i, column in self.columns if column.name in self.changing]
        new = (
            f"SELECT {self._staged(theirs)} FROM {self.stage.name} s WHERE {_HERE} AND s.copies = 1"
        )
        found = (
            f"SELECT t.tableoid AS at_table, t.ctid AS at_row FROM {self.table.rows} t,"
            f" {self.stage.name} s WHERE {_HERE} AND s.copies = -1"
            f" AND {self._there_is(others)} = {self._staged(others)}"
            f" ORDER BY {self._there_is(theirs)} IS NOT DISTINCT FROM ({new}) DESC LIMIT 1"
        )
        values = [f"{quoted(c.name)} = {self._value(i, c)}" for i, c in others if not c.always]
        kept = quoted(theirs[0][1].name)
        row = "t.tableoid = f.at_table AND t.ctid = f.at_row"
        return f"""
    IF touched = 0 AND changed_at = event.lsn THEN
        UPDATE {self.table.rows} t SET {", ".join(values or [f"{kept} = t.{kept}"])}
        FROM ({found}) f, {self.stage.name} s WHERE {row} AND {_HERE} AND s.copies = 1;
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched > 0 THEN
            in_place := event.seq;
        ELSE
            DELETE FROM {self.table.rows} t USING ({found}) f WHERE {row};
            GET DIAGNOSTICS touched = ROW_COUNT;
        END IF;
    END IF;"""

    @cached_property
    def _values(self) -> str:
        return ", ".join(self._value(index, column) for index, column in self.columns)

    @cached_property
    def _there(self) -> str:
        return (
            f"EXISTS (SELECT FROM {self.table.rows} t, {self.stage.name} s"
            f" WHERE {_HERE} AND {self._same_key()})"
        )

    @cached_property
    def _insert(self) -> str:
        return (
            f"INSERT INTO {self.table.name} {self._named} OVERRIDING SYSTEM VALUE"
            f" SELECT {self._values} FROM {self.stage.name} s WHERE {_HERE};"
        )

    @cached_property
    def _delete(self) -> str:
        return (
            f"DELETE FROM {self.table.rows} t USING {self.stage.name} s"
            f" WHERE {_HERE} AND {self._same_key('o')};"
        )

    def _update(self, side: str = "o") -> str:
        """Change the row that has a key: the one before the event, or the one behind it."""
        key = self._same_key(side)
        values = [
            f"{quoted(column.name)} = {self._new(index, column)}"
            for index, column in self.columns
            if self.any_identity or not column.always
        ]
        if not values:
            return f"PERFORM FROM {self.table.rows} t, {self.stage.name} s WHERE {_HERE} AND {key};"
        return (
            f"UPDATE {self.table.rows} t SET {', '.join(values)} FROM {self.stage.name} s"
            f" WHERE {_HERE} AND {key};"
        )

    def _conflict(self, pipeline: str, on_conflict: str, kind: str) -> str:
        """Stop, or note it."""
        if on_conflict == "error":
            return self._stop(kind)
        names = (self.table.schema, self.table.table)
        schema, table = (sql.Literal(name).as_string(None) for name in names)
        return (
            "INSERT INTO pgtide.conflicts"
            ' (pipeline, lsn, seq, "schema", "table", kind, resolution, key)'
            f" SELECT {pipeline}, '0/0'::pg_lsn + event.lsn, event.seq, {schema}, {table},"
            f" '{kind}', '{on_conflict}', {self._key_object}"
            f" FROM {self.stage.name} s WHERE {_HERE} LIMIT 1;"
        )

    def _stop(self, kind: str) -> str:
        return (
            f"RAISE EXCEPTION USING ERRCODE = '{CONFLICT}', MESSAGE = 'conflict', DETAIL ="
            " (SELECT json_build_object('lsn', event.lsn, 'seq', event.seq, 'stage', event.stage,"
            f" 'kind', '{kind}', 'key', {self._key_object})::text"
            f" FROM {self.stage.name} s WHERE {_HERE} LIMIT 1);"
        )

    def key(self, variable: str) -> str:
        """Put the key of the event's row into a variable."""
        return (
            f"SELECT {self._key_object} INTO {variable} FROM {self.stage.name} s"
            f" WHERE {_HERE} LIMIT 1;"
        )

    @cached_property
    def _key_object(self) -> str:
        return _key_object(self.stage)


def find_event(stage: Stage, chosen: Chosen, at: Position) -> str:
    """The key of the row that an event is about, if the stage has that event."""
    here = f"s.lsn = {int(at.lsn)} AND s.seq = {at.seq}"
    return f"SELECT {_key_object(stage)} FROM {stage.name} s WHERE {chosen.of(stage)} AND {here}"


def _key_object(stage: Stage) -> str:
    pairs = [
        f"{sql.Literal(name).as_string(None)}, s.v{index}::text"
        for name, index in stage.key_places.items()
    ]
    return f"jsonb_build_object({', '.join(pairs)})"
