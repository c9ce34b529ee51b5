"""Whether the target has what the application will need besides rows, check by check."""

from __future__ import annotations

from collections.abc import Iterator

from pgtide.config import TablePatterns
from pgtide.cutover.catalogs import large_objects, missing_objects, unlogged_tables
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.verdict import Check, fail, ok, warn
from pgtide.sinks.postgres.sequences import Copied

SHOWN = 10  # names in a line


def made(target: SqlConnection, pipeline: str) -> Check:
    """Whether nothing waits any more for the rows of a snapshot."""
    row = target.execute(
        "SELECT count(*) FROM pgtide.after_rows WHERE pipeline = %s", [pipeline]
    ).fetchone()
    waiting = row[0] if row else 0
    if waiting:
        said = f"{waiting} statements wait for the rows of the snapshot: pgtide.after_rows"
        return fail("schema", said, "Run: pgtide run, and look at pgtide status")
    return ok("schema", "nothing waits to be made")


def differences(
    source: SqlConnection,
    target: SqlConnection,
    pipeline: str,
    patterns: list[TablePatterns],
) -> Iterator[Check]:
    """Objects, statements and rows that the target does not have, or has otherwise."""
    if missing := missing_objects(source, target, patterns):
        said = f"the target does not have {listed(missing)}"
        yield warn("objects", said, "Make them at the target if the application needs them.")
    else:
        yield ok("objects", "indexes, constraints and triggers have the names of the source")
    for table, what, hint in (
        (
            "skipped",
            "DDL statements were left out: pgtide skip",
            "Do by hand what they did, if that is not done yet: see pgtide.left_out there.",
        ),
        (
            "conflicts",
            "rows were not as expected: pgtide.conflicts",
            f"Which rows differ now says: pgtide verify --pipeline {pipeline}",
        ),
    ):
        query = f"SELECT count(*) FROM pgtide.{table} WHERE pipeline = %s"
        row = target.execute(query.encode(), [pipeline]).fetchone()
        if row and row[0]:
            yield warn(table, f"{row[0]} {what}", hint)
    hint = "Copy them with pg_dump and pg_restore if the application needs them."
    if unlogged := unlogged_tables(source, patterns):
        said = f"rows of unlogged tables are not replicated: {listed(unlogged)}"
        yield warn("unlogged", said, hint)
    if count := large_objects(source):
        yield warn("large objects", f"{count} of them are not replicated", hint)


def sequence_check(copied: Copied) -> Check:
    """What became of the sequences."""
    if copied.missing or copied.unreadable:
        names = listed(copied.missing or copied.unreadable)
        why = "the target does not have them" if copied.missing else "the role may not read them"
        return fail("sequences", f"{why}: {names}", "Make them at the target, or grant SELECT.")
    said = f"{len(copied.set)} set, {len(copied.equal)} were equal"
    if copied.ahead:
        ahead = f"{said}; ahead of the source and left there: {listed(copied.ahead)}"
        return warn("sequences", ahead, "Somebody has used the target already.")
    return ok("sequences", said)


def listed(names: list[str]) -> str:
    """Some names, the first of them if they are many."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
