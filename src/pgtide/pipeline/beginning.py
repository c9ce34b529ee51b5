"""Where a run of a pipeline begins: where the log does, where it was, or where its target is."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property

from pgtide.config.model import Pipeline
from pgtide.config.sinks import PostgresSettings
from pgtide.errors import LogGap
from pgtide.log.reader import Log
from pgtide.log.readers import update_reader
from pgtide.log.schema import CHANGES
from pgtide.log.snapshot import Snapshot
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path
from pgtide.pipeline import parking
from pgtide.pipeline.reading import LogFrames
from pgtide.pipeline.state import State
from pgtide.pipeline.state_file import StateFile
from pgtide.pipeline.widening import START, Reselection, build_anew, recall
from pgtide.position import Position
from pgtide.sinks import Scope, Sink

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beginning:
    """Finds the state that a run goes on with."""

    name: str
    settings: Pipeline
    storage: Storage
    file: StateFile
    frames: LogFrames
    start: Position  # of a new pipeline

    def state(self, sink: Sink) -> State:
        """The pipeline's, in line with its settings and its target; registered with the log."""
        state = self.file.load()
        if state is None or self._has_gone_back(state, sink):
            state = self._begin(sink)
        self._go_on(state, sink)
        return state

    @cached_property
    def _log(self) -> Log:
        return Log(self.storage.root, self.storage.options)

    def _begin(self, sink: Sink) -> State:
        """Register before anything is looked at: from here on nothing is cleaned away.

        A target that tells how far it is, and with which tables, has lost no more than this state.
        """
        known, reader = self._log.snapshot(), parking.reader_name(self.name)
        if self.start.lsn >= known.complete_from:  # the target may not answer for a long time
            update_reader(self.storage, reader, known.version, self.start)
        kept, reached = sink.kept(self.name), sink.reached(Scope(self.name))
        start = max(self.start, reached.next) if reached and reached > START else self.start
        self._refuse_gap(known, start)
        update_reader(self.storage, reader, known.version, start)
        snapshot = self._log.snapshot()
        self._refuse_gap(snapshot, start)
        self.file.clear_stream()
        cuts = self.frames.cuts(snapshot, start, self.settings.batch)
        tables = kept.tables if kept is not None and start > self.start else None
        state = State.new(snapshot.version, start, cuts, tables or list(self.settings.tables))
        if kept is not None:
            state.left = dict(kept.left)
            state.parked = dict(kept.parked)
        if state.parked:
            self.file.ask_resume(None)  # one of them may have been on its way
        self.file.save(state)
        parking.register(self.storage, self.name, state, snapshot.version)
        return state

    def _has_gone_back(self, state: State, sink: Sink) -> bool:
        """Whether the target has lost what it had: restored from a backup, or failed over."""
        reached = sink.reached(Scope(self.name))
        if reached is None or state.applied is None or reached >= state.applied:
            return False
        logger.warning(
            "the target of pipeline %s was at %s and is at %s; it goes on there",
            *(self.name, state.applied, reached),
        )
        return True

    def _go_on(self, state: State, sink: Sink) -> None:
        """Check that nothing is missing: somebody may have made the log forget this reader."""
        if recall(state, sink.kept(self.name)):
            self.file.save(state)
        if state.tables != self.settings.tables:
            reselection = Reselection(self.name, self.settings, self.file, state, sink)
            reselection.run(self._log.shapes().values(), self._log.snapshot())
        oldest = min([state.position, *(parked.position for parked in state.parked.values())])
        self._refuse_gap(self._log.snapshot(), oldest)
        version = self.file.needed_version(state)
        parking.register(self.storage, self.name, state, version)
        self._refuse_gap(self._log.snapshot(), oldest)  # retention may have been under way
        if state.stream_began and not self.file.streams:
            self._begin_again(state, "has lost its stream's checkpoint")
        elif self.storage.child(CHANGES).read(commit_path(version)) is None:
            self._begin_again(state, "was forgotten, and the log has cleaned what it was at")

    def _begin_again(self, state: State, why: str) -> None:
        """The stream cannot go on: what comes after the position is history now.

        The newest version of the log will do, be those that it was at cleaned away.
        """
        logger.warning("pipeline %s %s; it goes on at %s", self.name, why, state.position)
        snapshot = self._log.snapshot()
        self.file.clear_stream()  # parts may be left
        cuts = self.frames.cuts(snapshot, state.position, self.settings.batch)
        state.begin_again(snapshot.version, cuts)
        self.file.save(state)
        parking.register(self.storage, self.name, state, snapshot.version)

    def _refuse_gap(self, snapshot: Snapshot, start: Position) -> None:
        if start.lsn >= snapshot.complete_from:
            return
        hint = f"Build the target anew, {build_anew(self.name, self.settings)}."
        if not isinstance(self.settings.sink, PostgresSettings):
            hint += " For a target that is complete up to there or takes events only: "
            hint += f"pgtide replay --pipeline {self.name} --from {snapshot.complete_from}"
        raise LogGap(
            "the log no longer holds everything that the pipeline needs",
            detail=f"Pipeline {self.name} needs {start} and later; retention has kept "
            f"{snapshot.complete_from} and later. Its tables would lack rows.",
            hint=hint,
        )
