"""Other tables for a pipeline that has run: those that come are caught up with.

They are parked where they have to begin and resumed as soon as the pipeline runs, like tables
that failed. That is the beginning of the log, since most sinks can tell what they have. A target
that only says how far it is as a whole would be given the rows it has once more: for it is
noted where a table leaves the selection, and that is where it goes on. Where the log has lost
something since it would be half a table: refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pgtide.config.model import Pipeline
from pgtide.config.patterns import TablePatterns
from pgtide.config.sinks import PostgresSettings
from pgtide.errors import LogGap
from pgtide.log.snapshot import Snapshot
from pgtide.pipeline.state import Parked, State, now
from pgtide.pipeline.state_file import StateFile
from pgtide.position import Lsn, Position
from pgtide.rules import TableRules, compile_rules
from pgtide.shape import Shape
from pgtide.sinks import Kept, Scope, Sink
from pgtide.spark.layout import TableName

START = Position(Lsn(0))


def recall(state: State, kept: Kept | None) -> bool:
    """Park what a target knows as parked: a state may be lost, or older. Whether there was such."""
    resuming = state.resuming.tables if state.resuming is not None else []
    known = {*state.parked, *resuming, *state.left}  # what has left may be noted as parked still
    found = {name: p for name, p in kept.parked.items() if name not in known} if kept else {}
    state.parked.update(found)
    return bool(found)


def build_anew(pipeline: str, settings: Pipeline) -> str:
    """How a target comes to be what the log alone cannot make of it any more."""
    if isinstance(settings.sink, PostgresSettings):
        return f"in an empty database: pgtide snapshot --schema --pipeline {pipeline}"
    return f"its tables read at the source: pgtide replay --pipeline {pipeline}"


@dataclass(frozen=True)
class Selection:
    """The tables of a log, and those of them that a pipeline took and takes."""

    relations: list[set[TableName]]  # the names that each has, or had
    before: TablePatterns
    after: TablePatterns

    @classmethod
    def of(cls, shapes: Iterable[Shape], before: list[str], after: list[str]) -> Selection:
        relations: dict[int, set[TableName]] = {}
        for shape in shapes:
            relations.setdefault(shape.home, set()).add(shape.home_name)
        return cls([*relations.values()], TablePatterns(before), TablePatterns(after))

    @property
    def later(self) -> list[TableName]:
        """Tables that are selected now, and were not when the pipeline last ran."""
        return self._only(self.after, self.before)

    @property
    def left(self) -> list[TableName]:
        """Tables that are not selected any more."""
        return self._only(self.before, self.after)

    def _only(self, these: TablePatterns, others: TablePatterns) -> list[TableName]:
        names = {name for relation in self.relations for name in relation}
        return sorted(n for n in names if these.matches(*n) and not others.matches(*n))

    def names_of(self, table: TableName) -> set[TableName]:
        """All names of the relations that have, or had, this one."""
        return {name for names in self.relations if table in names for name in names}


@dataclass(frozen=True)
class Reselection:
    """Brings a pipeline's state in line with its settings."""

    pipeline: str
    settings: Pipeline
    file: StateFile
    state: State
    sink: Sink

    def run(self, shapes: Iterable[Shape], snapshot: Snapshot) -> None:
        """Have tables caught up with that come, note where others leave, remember the patterns.

        Requests come before the state: a crash in between makes them be asked again.
        """
        state, wanted = self.state, list(self.settings.tables)
        before = wanted if state.tables is None else state.tables
        selection = Selection.of(shapes, before, wanted)
        starts = {table: self._start(table, selection) for table in selection.later}
        self._refuse_gap(snapshot, starts)
        for table in selection.left:
            self._leave(table)
        since = now()
        for table, start in starts.items():
            name = ".".join(table)
            self.file.ask_resume(name)
            state.parked[name] = self._parked(start, since)
            state.left.pop(name, None)
        state.tables = wanted
        self.file.save(state)

    def _start(self, table: TableName, selection: Selection) -> Position:
        """Where a table that comes has to begin; one that was renamed left under another name."""
        names = map(".".join, selection.names_of(table))
        left = [self.state.left[name] for name in names if name in self.state.left]
        reached = self.sink.reached(Scope(self.pipeline), self._rules(table)) if left else None
        return min(left) if reached and reached > START else START

    def _leave(self, table: TableName) -> None:
        """Note the first position that the target does not have of a table."""
        name, state, resuming = ".".join(table), self.state, self.state.resuming
        known, scope = state.position, Scope(self.pipeline)
        if (parked := state.parked.pop(name, None)) is not None:
            known = parked.position
        if resuming is not None and name in resuming.tables:
            known, scope = resuming.position, Scope(self.pipeline, state.resumption)
            resuming.tables.remove(name)
            if not resuming.tables:
                state.end_resuming()
            parked = None
        reached = self.sink.reached(scope, self._rules(table))
        if reached is not None:
            ahead = parked is None and reached > START
            position = max(known, reached.next) if ahead else known
            state.left[name] = position
            self.sink.leave(self.pipeline, self._rules(table), position)

    def _rules(self, table: TableName) -> TableRules:
        return compile_rules(self.settings.rules, self.settings.routes, *table)

    def _parked(self, start: Position, since: datetime) -> Parked:
        return Parked(
            start,
            "it was selected later than others",
            f"Pipeline {self.pipeline} passed over what the log has of it.",
            "It is caught up with when the pipeline runs: pgtide run",
            since,
        )

    def _refuse_gap(self, snapshot: Snapshot, starts: Mapping[TableName, Position]) -> None:
        """Refuse tables of whose rows the log may have lost some."""
        lost = [".".join(t) for t, start in starts.items() if start.lsn < snapshot.complete_from]
        if lost:
            raise LogGap(
                "tables were selected later, and the log has lost their beginning",
                detail=f"Pipeline {self.pipeline} passed over what the log had of "
                f"{', '.join(lost)}; retention has kept {snapshot.complete_from} and later. "
                "They would lack rows.",
                hint="Take them out of the pipeline's tables again; or build the target anew, "
                + build_anew(self.pipeline, self.settings),
            )
