"""More tables for a pipeline that has run: what it passed over of them is caught up with.

They are parked at the beginning of the log and resumed as soon as the pipeline runs, like
tables that failed. Where the log has lost its beginning that would be half a table: refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgtide.config.patterns import TablePatterns
from pgtide.errors import LogGap
from pgtide.log.snapshot import Snapshot
from pgtide.pipeline.state import Parked, State, StateFile, now
from pgtide.position import Lsn, Position
from pgtide.shape import Shape


def selected_later(state: State, wanted: Sequence[str], shapes: Iterable[Shape]) -> list[str]:
    """Tables of the log that the pipeline selects now, and did not when it last ran."""
    if state.tables is None or state.tables == list(wanted):
        return []
    before, after = TablePatterns(state.tables), TablePatterns(wanted)
    names = {
        (shape.root_schema, shape.root_table) if shape.root_oid else (shape.schema, shape.table)
        for shape in shapes
    }
    later = [name for name in names if after.matches(*name) and not before.matches(*name)]
    return sorted(".".join(name) for name in later)


def widen(
    pipeline: str, file: StateFile, state: State, wanted: Sequence[str], tables: Sequence[str]
) -> None:
    """Have tables caught up with, and remember the patterns. The request comes before the state:

    a crash in between makes it be asked again.
    """
    start = Position(Lsn(0))
    parked = Parked(
        start,
        "it was selected later than others",
        f"Pipeline {pipeline} passed over what the log has of it.",
        "It is caught up with when the pipeline runs: pgtide run",
        now(),
    )
    for table in tables:
        file.ask_resume(table)
    state.parked.update(dict.fromkeys(tables, parked))
    state.tables = list(wanted)
    file.save(state)


def refuse_lost_beginning(pipeline: str, snapshot: Snapshot, tables: Sequence[str]) -> None:
    """Refuse tables whose first rows the log may have lost."""
    if tables and snapshot.complete_from:
        raise LogGap(
            "tables were selected later, and the log has lost their beginning",
            detail=f"Pipeline {pipeline} has not delivered {', '.join(tables)} so far; retention "
            f"has kept {snapshot.complete_from} and later. They would lack rows.",
            hint="Take them out of the pipeline's tables again; to have them, begin a new log.",
        )
