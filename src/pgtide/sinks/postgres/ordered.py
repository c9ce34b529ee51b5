"""Staged events one by one, in the source's own order: slow, and right wherever the source was.

Values of a unique column that change hands, rows that refer to each other, a key that is written
in another way: the source has done it in this order, so the target can. Here it is also found
out which row is not as expected, and ``on_conflict`` is obeyed. All of it is one block of
PL/pgSQL, so that no event takes a round trip.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import psycopg
from psycopg import sql

from pgtide.errors import TargetError
from pgtide.sinks.postgres.applying import Applier, Staged
from pgtide.sinks.postgres.event_statements import EventStatements
from pgtide.sinks.postgres.failures import target_error

CONFLICT = "PGT01"
"""SQLSTATE of a conflict that ends the unit; its detail is JSON."""

_BLOCK = """
DO $pgtide$
#variable_conflict use_column
DECLARE
    event record;
    touched bigint;
BEGIN
    FOR event IN {events} LOOP
        CASE event.stage
{stages}
        END CASE;
    END LOOP;
EXCEPTION WHEN integrity_constraint_violation OR data_exception THEN
    DECLARE
        broken text;
    BEGIN
        GET STACKED DIAGNOSTICS broken = CONSTRAINT_NAME;
        RAISE EXCEPTION USING ERRCODE = '{conflict}', MESSAGE = 'refused', DETAIL =
            json_build_object('lsn', event.lsn, 'seq', event.seq, 'stage', event.stage,
                              'kind', SQLSTATE, 'constraint', broken)::text;
    END;
END
$pgtide$
"""


class OrderedApplier(Applier):
    """Applies the segments of one unit, event by event."""

    def apply(self, segment: int) -> None:
        work = self.staged(segment)
        if not work:
            return
        for one in work:
            stage = one.statements.stage
            self.connection.execute(f"CREATE INDEX ON {stage.name} (lsn, seq)".encode())
        by_number = {one.statements.stage.number: one for one in work}
        block = _BLOCK.format(
            events=self._events(work, segment),
            stages="\n".join(self._stage(one) for one in work),
            conflict=CONFLICT,
        )
        try:
            self.connection.execute(block.encode())
        except psycopg.Error as error:
            if error.sqlstate != CONFLICT:
                raise
            raise self._conflict(json.loads(error.diag.message_detail or "{}"), by_number) from None

    def _events(self, work: Sequence[Staged], segment: int) -> str:
        loads = ", ".join(map(str, self.loads))
        parts = []
        for one in work:
            known = "CASE s.known WHEN 'p' THEN 'r' ELSE s.known END" if one.lenient else "s.known"
            parts.append(
                f"SELECT s.lsn, s.seq, s.kind, {known} AS known, s.copies, s.unsent, s.load,"
                f" {one.statements.stage.number} AS stage FROM {one.statements.stage.name} s"
                f" WHERE s.segment = {segment} AND s.load IN ({loads})"
            )
        return f"{' UNION ALL '.join(parts)} ORDER BY lsn, seq, copies"

    def _stage(self, one: Staged) -> str:
        statements = EventStatements(one.statements.stage, one.table, one.statements.unsent)
        pipeline = sql.Literal(self.batch.mark.pipeline).as_string(None)
        body = statements.body(pipeline, self.settings.on_conflict, lenient=one.lenient)
        return f"        WHEN {one.statements.stage.number} THEN\n{body}"

    def _conflict(self, found: dict[str, object], stages: dict[int, Staged]) -> TargetError:
        """The error for an event that the target does not take, with the key of its row."""
        number = found.get("stage")
        one = stages.get(number) if isinstance(number, int) else None
        table = "" if one is None else f"{one.table.schema}.{one.table.table}"
        del number
        return conflict_error(found, table)


def conflict_error(found: dict[str, object], table: str) -> TargetError:
    """What is wrong with a row of the target, by its key; no other values."""
    position = f"{found.get('lsn')}:{found.get('seq')}"
    kind = str(found.get("kind", ""))
    facts = {
        "insert_exists": "a row that was inserted is there already",
        "update_missing": "a row that was changed is not there",
        "delete_missing": "a row that was deleted is not there",
        "not_whole": "a row is not there, and its change does not carry all of its values",
    }
    if kind in facts:
        detail = f"In {table}, key {json.dumps(found.get('key'))}, at {position}."
        return TargetError(
            f"the target: {facts[kind]}",
            detail=detail,
            hint="Set on_conflict to apply or keep, or correct the row and run: pgtide run",
        )
    constraint = found.get("constraint")
    about = f" by constraint {constraint}" if constraint else ""
    return TargetError(
        f"the target refuses a row{about}",
        detail=f"In {table} at {position}, SQLSTATE {kind}.",
        hint="Correct the constraint or the row at the target, then run: pgtide run",
    )


__all__ = ["OrderedApplier", "conflict_error", "target_error"]
