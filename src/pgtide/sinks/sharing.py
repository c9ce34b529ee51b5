"""Two tables of the source that routes bring to one table of a target: refused.

Each would take the other's rows for its own, or replace the other for ever. Those of one batch
are found here, before anything is written; a table that is there already says whose it is.
"""

from __future__ import annotations

from pgtide.errors import ConfigError, TargetError
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.parallel import Failure
from pgtide.pipeline.steps import Reshaped, Rows, TableWork
from pgtide.spark.layout import TableName


def clashes(batch: Batch) -> list[Failure]:
    """A failure for all of a batch's work whose tables would be one; none where names follow
    one another by renames."""
    works: dict[TableName, list[TableWork]] = {}
    for work in batch.work:
        writes = any(isinstance(step, Rows | Reshaped) for step in work.steps)
        for target in _targets(batch, work) if writes else ():
            works.setdefault(target, []).append(work)
    found: dict[str, Failure] = {}
    for target, sharing in works.items():
        for work in sharing if len(sharing) > 1 else ():
            names = sorted(each.name for each in sharing)
            found.setdefault(work.name, Failure(work, shared(names, ".".join(target))))
    return list(found.values())


def _targets(batch: Batch, work: TableWork) -> set[TableName]:
    try:
        return {batch.rules(table).target for table in work.tables}
    except ConfigError:
        return set()  # its writer says why


def shared(tables: list[str], place: str) -> TargetError:
    """The refusal."""
    return TargetError(
        "two tables of the source would be one table of the target",
        detail=f"{' and '.join(tables)} both go to {place}.",
        hint="Give them different names in routes.",
    )
