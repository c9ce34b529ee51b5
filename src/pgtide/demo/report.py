"""The end of the demo: what log and lake hold, whether it is the truth, where the time went."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pgtide.demo.answers import Audit
from pgtide.demo.lake import Compared, Rows
from pgtide.demo.live import Screen
from pgtide.demo.proof import Findings
from pgtide.demo.workload import Shop
from pgtide.log.schema import OPS
from pgtide.shape import Shape


@dataclass(frozen=True)
class Results:
    """Everything that the demo found out."""

    shop: Shop
    log: Findings
    tables: list[Compared]
    audit: Audit
    mirrored: Rows  # of customers
    applied: dict[str, int]  # rows of the log, by pipeline
    batches: dict[str, int]

    @property
    def ok(self) -> bool:
        return all(holds for holds, _ in verdicts(self))


def verdicts(results: Results) -> list[tuple[bool, str]]:
    """Each claim, and whether it holds."""
    shop, found, audit = results.shop, results.log, results.audit
    built = "the tables built from the log equal the tables in Postgres"
    if found.differing:
        built = f"tables that differ from Postgres: {', '.join(found.differing)}"
    unequal = [table.table for table in results.tables if not table.equal]
    mirrored = "the tables in the lake equal the tables in Postgres"
    if unequal:
        mirrored = f"tables of the lake that differ from Postgres: {', '.join(unequal)}"
    return [
        (
            found.counts == shop.committed and found.transactions == shop.transactions,
            f"{found.events} events in {found.transactions} transactions in the log; "
            f"Postgres committed {shop.committed.total()} in {shop.transactions}",
        ),
        (found.ordered, "every position once and in order, across the kill -9"),
        (found.ddl_first, "every DDL stands before the rows that have its shape"),
        (not found.differing, built),
        (
            found.unchanged == shop.untouched,
            f"{found.unchanged} TOASTed values were not sent and say so",
        ),
        (not unequal, mirrored),
        (
            audit.right,
            f"{audit.rows} changes of fields in the pivot, the shop made {audit.expected}; "
            "its answers are what the shop counted",
        ),
    ]


def print_report(screen: Screen, results: Results, seconds: dict[str, float]) -> None:
    """The summary for people."""
    _print_log(screen, results.log)
    _print_lake(screen, results)
    _print_audit(screen, results.audit)
    screen.say()
    for holds, text in verdicts(results):
        screen.say(f"{'✓' if holds else '✗'} {text}", "green" if holds else "bold red")
    spent = " · ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    screen.say(f"\nWhere the time went: {spent}", "dim")


def _print_log(screen: Screen, found: Findings) -> None:
    screen.say("\nRead back from the log", "bold")
    ops = [op for op in OPS if any(op == seen for _, seen in found.counts)]
    screen.say(f"  {'':10}" + "".join(f"{op:>10}" for op in ops))
    for table in sorted({table for table, _ in found.counts}):
        cells = "".join(f"{found.counts.get((table, op), '·'):>10}" for op in ops)
        screen.say(f"  {table or '(no table)':10}{cells}")
    screen.say("  shapes of customers:")
    for shape in found.shapes:
        screen.say(f"    {shape.id} since {shape.since}: {_columns(shape)}")
    log = found.summary
    size = f"{log['bytes'] / 1e6:.1f} MB in {log['files']} files, Delta version {log['version']}"
    screen.say(f"  positions {found.first} … {found.last}; {size}")


def _print_lake(screen: Screen, results: Results) -> None:
    screen.say("\nSource and lake, side by side", "bold")
    screen.say(f"  {'':10} {'Postgres':>8}  {'checksum':32}  {'lake':>8}  checksum")
    for table in results.tables:
        source, lake = table.source, table.lake
        screen.say(
            f"  {table.table:10} {source.rows:8}  {source.checksum}"
            f"  {lake.rows:8}  {lake.checksum}  {'=' if table.equal else '≠'}",
            "" if table.equal else "bold red",
        )
    done = ", ".join(
        f"{name} {rows} events in {results.batches[name]} batches"
        for name, rows in results.applied.items()
    )
    screen.say(f"  applied: {done}")
    screen.say("\nThe mirror of customers, with the position that each row is from", "bold")
    _print_rows(screen, results.mirrored)


def _print_audit(screen: Screen, audit: Audit) -> None:
    screen.say("\nThe pivot of orders: one order's life", "bold")
    _print_rows(screen, audit.sample)
    screen.say("\nAsked of the pivot", "bold")
    for answer in audit.answers:
        said = ", ".join(f"{count} × {name}" for name, count in answer.answer.items()) or "never"
        screen.say(f"  {answer.question}\n    {said}")


def _print_rows(screen: Screen, rows: Rows) -> None:
    """A table as wide as its values."""
    if not rows:
        return
    names = list(rows[0])
    lines = [names, *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(names))]
    for number, line in enumerate(lines):
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        screen.say("  " + "  ".join(padded).rstrip(), "" if number else "dim")


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%H:%M:%S.%f}"[:-3]
    return "NULL" if value is None else str(value)


def print_whereabouts(screen: Screen, keep: Path | None) -> None:
    """Where log and lake are, or how to keep them."""
    if keep is None:
        screen.say("\nEverything was in a temporary directory and is gone. To look around in it:")
        screen.say("  pgtide demo --keep DIR")
        return
    screen.say(f"\nLog and lake stay in {keep}; their Postgres is gone.", "bold")
    screen.say(f"  {keep}/log                    the change log")
    screen.say(f"  {keep}/lake/public/…          the mirrors, Delta tables")
    screen.say(f"  {keep}/audit/public/orders    the pivot, a Delta table")
    screen.say(f"  pgtide -c {keep}/pgtide.yaml log tail --from beginning --table customers")


def document(results: Results, seconds: dict[str, float]) -> dict[str, Any]:
    """The summary for programs."""
    found, audit = results.log, results.audit
    return {
        "ok": results.ok,
        "events": found.events,
        "committed": results.shop.committed.total(),
        "transactions": found.transactions,
        "counts": [
            {"table": table or None, "op": op, "events": count}
            for (table, op), count in sorted(found.counts.items())
        ],
        "unchanged": found.unchanged,
        "shapes": [
            {"id": s.id, "since": str(s.since), "columns": _columns(s)} for s in found.shapes
        ],
        "tables": [
            {"table": name, "rows": count, "equal": name not in found.differing}
            for name, count in found.rows.items()
        ],
        "lake": [{**asdict(table), "equal": table.equal} for table in results.tables],
        "pivot": {
            "rows": audit.rows,
            "expected": audit.expected,
            "answers": [asdict(answer) for answer in audit.answers],
        },
        "applied": results.applied,
        "batches": results.batches,
        "position": found.summary["position"],
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def _columns(shape: Shape) -> str:
    return ", ".join(f"{column.name} {column.type_name}" for column in shape.columns)
