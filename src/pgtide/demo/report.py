"""The end of the demo: what the log holds, whether it is the truth, where the time went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pgtide.demo.live import Screen
from pgtide.demo.proof import Findings
from pgtide.demo.workload import Shop
from pgtide.log.schema import OPS
from pgtide.shape import Shape


def verdicts(shop: Shop, found: Findings) -> list[tuple[bool, str]]:
    """Each claim, and whether it holds."""
    rows = ", ".join(f"{name} {count}" for name, count in found.rows.items())
    built = f"the tables built from the log equal the tables in Postgres ({rows} rows)"
    if found.differing:
        built = f"tables that differ from Postgres: {', '.join(found.differing)}"
    return [
        (
            found.counts == shop.committed and found.transactions == shop.transactions,
            f"{found.events} events in {found.transactions} transactions in the log; "
            f"Postgres committed {shop.committed.total()} in {shop.transactions}",
        ),
        (found.ordered, "every position once and in order, across the kill -9"),
        (found.ddl_first, "every DDL stands before the rows that have its shape"),
        (not found.differing, built),
        (found.unchanged == 1, f"{found.unchanged} TOASTed value was not sent and says so"),
    ]


def print_report(screen: Screen, shop: Shop, found: Findings, seconds: dict[str, float]) -> None:
    """The summary for people."""
    screen.say("\nRead back from the log", "bold")
    ops = [op for op in OPS if any(op == seen for _, seen in found.counts)]
    screen.say(f"  {'':10}" + "".join(f"{op:>10}" for op in ops))
    for table in sorted({table for table, _ in found.counts}):
        cells = "".join(f"{found.counts.get((table, op), '·'):>10}" for op in ops)
        screen.say(f"  {table or '(no table)':10}{cells}")
    screen.say("\nShapes of customers")
    for shape in found.shapes:
        screen.say(f"  {shape.id} since {shape.since}: {_columns(shape)}")
    log = found.summary
    screen.say(f"\nPositions {log['first']} … {log['last']}, the log is at {log['position']}")
    size = f"{log['bytes'] / 1e6:.1f} MB in {log['files']} files, Delta version {log['version']}"
    screen.say(f"{size}\n")
    for holds, text in verdicts(shop, found):
        screen.say(f"{'✓' if holds else '✗'} {text}", "green" if holds else "bold red")
    spent = " · ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    screen.say(f"\nWhere the time went: {spent}", "dim")


def print_kept(screen: Screen, keep: Path) -> None:
    """How to look at a log that stays."""
    screen.say(f"\nThe log stays in {keep}. Its Postgres is gone; look at it with:", "bold")
    screen.say(f"  pgtide -c {keep}/pgtide.yaml log show")
    screen.say(f"  pgtide -c {keep}/pgtide.yaml log tail --from beginning --table customers")


def document(shop: Shop, found: Findings, seconds: dict[str, float]) -> dict[str, Any]:
    """The summary for programs."""
    return {
        "ok": all(holds for holds, _ in verdicts(shop, found)),
        "events": found.events,
        "committed": shop.committed.total(),
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
        "position": found.summary["position"],
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def _columns(shape: Shape) -> str:
    return ", ".join(f"{column.name} {column.type_name}" for column in shape.columns)
