"""Whether a target can take over, check by check; with the source made read-only if asked.

    lag ──▶ [no writes for a while] ──▶ [read-only] ──▶ mark L ──▶ wait until the target has L
        ──▶ sequences, objects, parked ──▶ verify ──▶ mark L2: no change between L and L2

Without read-only nothing keeps anybody from writing: then the last step only says that nobody did.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg

from pgtide.config import Config, TablePatterns
from pgtide.cutover.outcome import Outcome, Settings
from pgtide.cutover.progress import Late, Progress
from pgtide.cutover.read_only import NAME, ReadOnly
from pgtide.cutover.reads import Reads, open_reads
from pgtide.cutover.schema_checks import differences, listed, made, sequence_check
from pgtide.errors import PgtideError
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import connect, translate
from pgtide.postgres.verdict import Check, fail, ok, warn
from pgtide.sinks.postgres.failures import target_error
from pgtide.sinks.postgres.reaching import connect_target
from pgtide.sinks.postgres.sequences import copy_sequences, sequences_of
from pgtide.sinks.postgres.target_tables import enable_triggers
from pgtide.verify.readiness import Readiness
from pgtide.verify.verifying import Options, Verification

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


class Cutover:
    """One attempt to hand over to the target of a pipeline."""

    def __init__(
        self, spark: SparkSession, config: Config, pipeline: str, settings: Settings
    ) -> None:
        self._spark = spark
        self._config = config
        self._settings = settings
        self._patterns = [
            TablePatterns(config.source.tables),
            TablePatterns(config.pipelines[pipeline].tables),
        ]
        self.outcome = Outcome(pipeline)

    def run(self) -> Outcome:
        """All checks, up to the first without which the rest means nothing."""
        with ExitStack() as stack:
            self._source = stack.enter_context(
                connect(self._config.source.url.reveal(), application_name=NAME)
            )
            self._target = stack.enter_context(
                connect_target(self._config, self.outcome.pipeline, application_name=NAME)
            )
            self._readiness = stack.enter_context(
                Readiness(self._spark, self._config, self.outcome.pipeline, self._settings.stop)
            )
            self._at = Progress(
                self._config,
                self.outcome.pipeline,
                self._source,
                self._target,
                self._readiness,
                self._settings.stop,
            )
            try:
                self._run(stack)
            except psycopg.Error as exc:
                raise self._told(exc) from exc
        return self.outcome

    def _told(self, exc: psycopg.Error) -> PgtideError:
        """The error for what one of the two servers said: the target, if it is the one lost."""
        if not self._target.closed:
            return translate(exc)
        again = "Start that server, or correct the pipeline's sink.url, then run it again: "
        again += f"pgtide cutover --pipeline {self.outcome.pipeline}"
        return target_error(exc, "it is asked whether it can take over", again)

    def _run(self, stack: ExitStack) -> None:
        if not self._note(self._begun()):
            return
        self._note(self._lag())
        quiet_s = self._settings.quiet_s
        if quiet_s is not None and not self._note(self._stopped(quiet_s)):
            return
        if not self._settings.read_only:
            self._finish()
            return
        source = stack.enter_context(ReadOnly(self._config, self._settings.stop))
        try:
            if self._note(*source.begin()):
                self._finish()
        except BaseException:
            source.undo()
            if source.undo_sql is None:  # no verdict will say so
                logger.warning("the source can be written to as before")
            raise
        if not self.outcome.ready:
            source.undo()
        self.outcome.undo = source.undo_sql

    def _finish(self) -> None:
        """What is checked once nobody should write any more."""
        mark = self._at.mark()
        if not self._note(self._caught_up(mark)) or not self._note(self._read_again()):
            return
        self.outcome.position = mark
        self._note(*self._schema(), self._parked(), self._copy_sequences())
        if not self.outcome.ready:
            return
        if self._settings.verify and not self._note(self._verified()):
            return
        if self._note(self._unwritten(mark)):
            self._note(self._enabled())

    def _note(self, *checks: Check) -> bool:
        """Remember and tell; whether all is well so far."""
        self.outcome.checks += checks
        for check in checks:
            if self._settings.on_check is not None:
                self._settings.on_check(check)
        return self.outcome.ready

    # -- one by one ----------------------------------------------------------------------

    def _begun(self) -> Check:
        row = self._target.execute("SELECT to_regclass('pgtide.after_rows') IS NOT NULL").fetchone()
        if row and row[0] and self._at.reached() > Position(Lsn(0)):
            return ok("target", f"pipeline {self.outcome.pipeline} has written to it")
        hint = "Run: pgtide snapshot --schema, then pgtide run"
        return fail("target", f"pipeline {self.outcome.pipeline} has never written to it", hint)

    def _lag(self) -> Check:
        """How far it is now; waiting for it comes later."""
        reached = self._at.reached()
        behind = max(0, self._at.mark() - reached.lsn)
        return ok("lag", f"the target is at {reached.lsn}, {behind} bytes of WAL behind")

    def _stopped(self, quiet_s: float) -> Check:
        """Wait until the application has been stopped: for so long nobody changed the tables."""
        deadline = time.monotonic() + self._settings.wait_s
        found: Position | None = None
        try:
            while time.monotonic() < deadline:
                mark = self._at.mark()
                self._at.pause(quiet_s)
                _, found = self._at.written_since(mark, deadline)
                if found is None:
                    return ok("writes", f"no table was changed for {quiet_s:g} s")
        except Late:
            pass  # the target did not keep up with those who write
        last = f"the last change is at {found}" if found else "the target is behind"
        said = f"writes did not stop within {self._settings.wait_s:.0f} s: {last}"
        hint = "Stop the application and run it again, with a longer --wait, or use --read-only"
        return fail("writes", said, hint)

    def _caught_up(self, mark: Lsn) -> Check:
        deadline = time.monotonic() + self._settings.wait_s
        try:
            self._at.reach(mark, deadline)
        except Late:
            said = f"the target did not get to {mark} within {self._settings.wait_s:.0f} s"
            hint = "Run: pgtide status; then again with a longer --wait"
            return fail("caught up", f"{said}; it is at {self._at.reached()}", hint)
        return ok("caught up", f"the target has everything up to {mark}")

    def _read_again(self) -> Check:
        """Wait for rows that DDL has changed: they are read, and come behind the mark."""
        deadline = time.monotonic() + self._settings.wait_s
        reads = begun = self._open_reads()
        while reads.going_on and time.monotonic() < deadline:
            self._readiness.capture()
            self._at.pause()
            reads = self._open_reads()
        if left := [*reads.stuck, *reads.going_on]:
            hint = "See pgtide refresh --list. What is not wanted: pgtide refresh --cancel ID"
            return fail("reads", f"tables are still to be read again: {listed(left)}", hint)
        try:
            if begun.going_on:
                self._at.reach(self._at.mark(), deadline)
        except Late:
            return fail("reads", "what was read again is not in the target yet", "pgtide status")
        return ok("reads", "no table is being read again")

    def _open_reads(self) -> Reads:
        return open_reads(self._config, self._source, self._patterns)

    def _schema(self) -> Iterator[Check]:
        yield made(self._target, self.outcome.pipeline)
        yield from differences(self._source, self._target, self.outcome.pipeline, self._patterns)

    def _parked(self) -> Check:
        state = self._readiness.state()
        parked = sorted(state.parked) if state is not None else []
        if parked:
            hint = f"Run: pgtide resume --pipeline {self.outcome.pipeline}"
            return fail("parked", f"tables are parked: {listed(parked)}", hint)
        return ok("parked", "no table is parked")

    def _copy_sequences(self) -> Check:
        wanted = sequences_of(self._source, self._patterns)
        copied = copy_sequences(self._source, self._target, wanted)
        self.outcome.sequences = copied
        return sequence_check(copied)

    def _verified(self) -> Check:
        options = Options(stop=self._settings.stop, on_progress=self._settings.on_progress)
        verification = Verification(self._spark, self._config, self.outcome.pipeline, options)
        report = self.outcome.verification = verification.run()
        hint = f"Run: pgtide verify --pipeline {self.outcome.pipeline}"
        if report.refused:
            return fail("verified", f"it cannot be: {report.refused}", "Or leave it: --no-verify")
        if report.differing:
            names = listed([table.table for table in report.differing])
            return fail("verified", f"source and target differ: {names}", hint)
        compared = [table for table in report.tables if not table.refused]
        rows = sum(table.rows for table in compared)
        said = f"{len(compared)} tables are equal, {rows} rows"
        if refused := [table.table for table in report.tables if table.refused]:
            return warn("verified", f"{said}; not compared: {listed(refused)}", hint)
        return ok("verified", said)

    def _enabled(self) -> Check:
        """What replication had switched off at the target is the application's again."""
        with self._target.transaction():
            enabled = enable_triggers(self._target)
        return ok("triggers", f"{enabled} triggers and rules of the target are enabled again")

    def _unwritten(self, mark: Lsn) -> Check:
        """Nothing was changed since the mark: whatever was checked is still so."""
        try:
            deadline = time.monotonic() + self._settings.wait_s
            now, found = self._at.written_since(mark, deadline)
        except Late:
            return fail("quiet", f"the target did not get on from {mark}", "pgtide status")
        if found is not None:
            hint = "Stop the application and run it again, or use --read-only"
            return fail("quiet", f"somebody writes to the source: a change at {found}", hint)
        said = f"no table was changed from {mark} to {now}"
        if self._settings.read_only:
            return ok("quiet", said)
        return warn("quiet", f"{said}; nothing keeps anybody from it", "See --read-only")
