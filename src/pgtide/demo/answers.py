"""Questions that only a history can answer, asked of the pivot table of orders.

A pivot has one row per changed field, so each is one SELECT. The shop has counted the same
things while it did them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pgtide.demo.lake import Rows, mirror, query
from pgtide.demo.workload import Shop

CUSTOMER = 2
FIELDS = ("product", "quantity", "status")  # of an order, besides those that say whose it is

_QUANTITY = f"""
SELECT count(*) AS n FROM t
WHERE customer = {CUSTOMER} AND change_field = 'quantity' AND crud_type = 'u'
"""
_STATUS = """
SELECT old_value, new_value, count(*) AS n FROM t
WHERE change_field = 'status' AND crud_type = 'u'
GROUP BY old_value, new_value ORDER BY n DESC, old_value
"""
_LEFT = """
SELECT old_value, count(*) AS n FROM t
WHERE change_field = 'status' AND crud_type = 'u'
  AND datetime_updated BETWEEN TIMESTAMP '{since}' AND TIMESTAMP '{until}'
GROUP BY old_value ORDER BY n DESC, old_value
"""
_SAMPLE = """
SELECT id, customer, change_field, old_value, new_value, crud_type,
       coalesce(datetime_created, datetime_updated, datetime_deleted) AS at
FROM t WHERE id IN (SELECT min(id) FROM t WHERE change_field = 'quantity' AND crud_type = 'u')
ORDER BY at, change_field LIMIT 6
"""


@dataclass(frozen=True)
class Answer:
    """A question, what the pivot says, and what the shop counted."""

    question: str
    answer: dict[str, int]
    counted: dict[str, int]

    @property
    def right(self) -> bool:
        return self.answer == self.counted


@dataclass(frozen=True)
class Audit:
    """What the pivot table gave."""

    rows: int
    expected: int
    answers: list[Answer]
    sample: Rows

    @property
    def right(self) -> bool:
        return self.rows == self.expected and all(answer.right for answer in self.answers)


def ask(audit: Path, shop: Shop) -> Audit:
    """Ask everything."""
    pivot = mirror(audit, "orders")
    until = datetime.now(UTC)
    assert shop.noon is not None, "the shop has closed before noon"
    between = {"since": _sql(shop.noon), "until": _sql(until)}
    left = query(pivot, _LEFT.format(**between))
    changed = query(pivot, _STATUS)
    whole = shop.committed["orders", "insert"] + shop.committed["orders", "delete"]
    return Audit(
        rows=_number(query(pivot, "SELECT count(*) AS n FROM t")),
        expected=len(FIELDS) * whole + shop.committed["orders", "update"],
        answers=[
            Answer(
                f"How often did orders of customer {CUSTOMER} change their quantity?",
                {"quantity": _number(query(pivot, _QUANTITY))},
                {"quantity": shop.quantities[CUSTOMER]},
            ),
            Answer(
                "How often did an order change its status, from what to what?",
                {f"{row['old_value']} to {row['new_value']}": row["n"] for row in changed},
                {f"{old} to {new}": count for (old, new), count in shop.statuses.items()},
            ),
            Answer(
                "Which status was left most often"
                f" between {shop.noon.astimezone(UTC):%H:%M:%S} and {until:%H:%M:%S} UTC?",
                {row["old_value"]: row["n"] for row in left},
                dict(shop.left_since_noon),
            ),
        ],
        sample=query(pivot, _SAMPLE),
    )


def _number(rows: list[dict[str, Any]]) -> int:
    return int(rows[0]["n"]) if rows else 0


def _sql(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
