"""Staged events one by one, in the source's own order: slow, and right wherever the source was.

Values of a unique column that change hands, rows that refer to each other, a key that is written
in another way: the source has done it in this order, so the target can. Here it is also found
out which row is not as expected, and ``on_conflict`` is obeyed. All of it is one block of
PL/pgSQL, so that no event takes a round trip.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgtide.position import Lsn, Position
from pgtide.sinks.postgres.applying import Applier, Staged
from pgtide.sinks.postgres.deferred import MARK, SETTLE, begin_marks, check
from pgtide.sinks.postgres.event_statements import CONFLICT, EventStatements, find_event
from pgtide.sinks.postgres.failures import TableRefused, row_refused
from pgtide.sinks.postgres.late_keys import late_keys
from pgtide.sinks.postgres.target_tables import Cascades, read_cascades, unlocked

_BLOCK = """
#variable_conflict use_column
DECLARE
    event record;
    touched bigint;
    cascaded_at bigint; -- the transaction in which rows may have gone with others
    changed_at bigint; -- in which they may have changed
    in_place bigint; -- an update of a row without a key of which nothing is left to do
    settled boolean := false;
BEGIN
    FOR event IN {events} LOOP
{before}
        CASE event.stage
{stages}
        END CASE;
    END LOOP;
EXCEPTION WHEN integrity_constraint_violation OR data_exception OR program_limit_exceeded
        OR plpgsql_error THEN
    DECLARE
        broken text;
        refused jsonb;
    BEGIN
        GET STACKED DIAGNOSTICS broken = CONSTRAINT_NAME;
        CASE event.stage
{keys}
        END CASE;
        RAISE EXCEPTION USING ERRCODE = '{conflict}', MESSAGE = 'refused', DETAIL =
            json_build_object('lsn', event.lsn, 'seq', event.seq, 'stage', event.stage, 'kind',
                              SQLSTATE, 'constraint', broken, 'key', refused)::text;
    END;
END
"""


@dataclass
class OrderedApplier(Applier):
    """Applies the segments of one unit, event by event."""

    late: bool = False  # foreign keys look when a segment is done

    def apply(self, segment: int) -> None:
        work = self.staged(segment)
        following = self.rows.cuts[segment : segment + 1]
        with ExitStack() as stack:
            late: Sequence[tuple[str, str]] = ()
            if self.late:
                tables = [one.table for one in work]
                late = stack.enter_context(late_keys(self.connection, tables))
            deferring = begin_marks(self.connection)
            if work:
                self._apply(work, segment, self._before(following) if deferring else "")
            if following and late:
                self.check(late)
            elif deferring and not following:
                self.check()

    def check(self, names: Sequence[tuple[str, str]] | None = None) -> None:
        """Have deferred constraints look, or some: which event they refuse is known."""
        refused = check(self.connection, names)
        if refused is not None:
            error, position = refused
            raise self._refused_late(error, position) or error

    def _refused_late(self, error: psycopg.Error, at: Position) -> TableRefused | None:
        """The error for an event that a deferred constraint does not take."""
        for stage, table in self.rows.stages.values():
            row = self._run(find_event(stage, self.chosen, at)).fetchone()
            if row is not None:
                kind, constraint = error.sqlstate or "", error.diag.constraint_name
                return row_refused(table.rules.target, at, row[0], kind, constraint)
        return None

    @staticmethod
    def _before(following: Sequence[Position]) -> str:
        """What is done before an event: transactions that are complete are settled before a cut."""
        if not following:
            return MARK
        here = f"event.lsn = {int(following[0].lsn)} AND NOT settled"
        return f"IF {here} THEN settled := true; {SETTLE} END IF; {MARK}"

    def _apply(self, work: Sequence[Staged], segment: int, before: str) -> None:
        for one in work:
            self.connection.execute(one.statements.stage.create_index().encode())
        cascades = read_cascades(self.connection, [one.table for one in work])
        for one in work:
            if one.counts.copies:
                self._refuse_changes(one)
        identities = [(one, self._all_identities(one)) for one in work]
        by_number = {one.statements.stage.number: one for one in work}
        block = _BLOCK.format(
            before=before,
            events=self._events(work, segment),
            stages="\n".join(self._stage(one, bool(names), cascades) for one, names in identities),
            keys="\n".join(self._key(one) for one in work),
            conflict=CONFLICT,
        )
        lenient = [one for one in work if one.lenient and one.statements.unsent]
        for one in lenient:
            self._run(f"SELECT {_of_events(one).count_passed()}")
        try:
            with ExitStack() as stack:
                for one, names in identities:
                    stack.enter_context(unlocked(self.connection, one.table, names))
                # Quoted like a value: names may hold whatever else could end it.
                self.connection.execute(sql.SQL("DO {}").format(sql.Literal(block)))
        except psycopg.Error as error:
            if error.sqlstate != CONFLICT:
                raise
            raise self._refused(json.loads(error.diag.message_detail or "{}"), by_number) from None
        for one in lenient:
            row = self._run(_of_events(one).passed).fetchone()
            assert row is not None, "a setting has a value"
            self._count_passed(one, row[0])

    def _all_identities(self, one: Staged) -> list[str]:
        """Those besides the key that some event may change, and those of a key that changes."""
        names = one.statements.identities
        if names:
            row = self._run(one.statements.moving_identities()).fetchone()
            names = names if row is not None and row[0] else self._identities(one)
        keys = [
            column.name
            for index, column in one.statements.columns
            if column.always and index in one.statements.stage.keys
        ]
        if keys:
            row = self._run(one.statements.moved_identities()).fetchone()
            names = names + keys if row is not None and row[0] else names
        return names

    def _events(self, work: Sequence[Staged], segment: int) -> str:
        parts = []
        for one in work:
            known = "CASE s.known WHEN 'p' THEN 'r' ELSE s.known END" if one.lenient else "s.known"
            stage = one.statements.stage
            parts.append(
                f"SELECT s.lsn, s.seq, s.kind, {known} AS known, s.copies, s.unsent, s.load,"
                f" {stage.number} AS stage FROM {stage.name} s"
                f" WHERE {self.chosen.of(stage, segment)}"
            )
        return f"{' UNION ALL '.join(parts)} ORDER BY lsn, seq, copies"

    def _stage(self, one: Staged, any_identity: bool, cascades: Cascades) -> str:
        statements = EventStatements(
            one.statements.stage,
            one.table,
            one.statements.unsent,
            any_identity=any_identity,
            cascades=one.table.oid in cascades.parents,
            cascaded=one.table.oid in cascades.children,
            follows=one.table.oid in cascades.followers,
            changes=one.table.oid in cascades.changers,
            changing=cascades.changing.get(one.table.oid, frozenset()),
        )
        pipeline = sql.Literal(self.batch.scope.pipeline).as_string(None)
        body = statements.body(pipeline, self.settings.on_conflict, lenient=one.lenient)
        return f"        WHEN {one.statements.stage.number} THEN\n{body}"

    def _key(self, one: Staged) -> str:
        return f"        WHEN {one.statements.stage.number} THEN {_of_events(one).key('refused')}"

    def _refused(self, found: Mapping[str, Any], stages: Mapping[int, Staged]) -> TableRefused:
        """The error for an event that the target does not take, with the key of its row."""
        table = stages[found["stage"]].table
        return row_refused(
            (table.schema, table.table),
            Position(Lsn(found["lsn"]), found["seq"]),
            found["key"],
            found["kind"],
            found.get("constraint"),
        )


def _of_events(one: Staged) -> EventStatements:
    return EventStatements(one.statements.stage, one.table, one.statements.unsent)
