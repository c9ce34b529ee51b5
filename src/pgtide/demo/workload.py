"""The shop: what its application does, and what Postgres said it committed.

``Shop`` is filled from the server's own row counts, after COMMIT, and knows
nothing of pgtide: the proof compares the log and the lake with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg

TABLES = ("customers", "orders", "products", "visits")
CLOSING = "shop.closing"  # the last event is a message, so that readers know when to stop

# Text that does not compress below 2 kB is stored out of line (TOAST).
MANUAL = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 800) n)"
VISITS = 20_000

# The pivot tells old values: for that the server has to send old rows of orders.
SCHEMA = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, email text);
CREATE TABLE products (id int PRIMARY KEY, name text NOT NULL, price numeric(8,2), manual text);
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, product int NOT NULL,
                     quantity int NOT NULL, status text NOT NULL DEFAULT 'new');
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE visits (id int PRIMARY KEY, customer int, at timestamptz DEFAULT now());
"""

CUSTOMERS = ("Ada Lovelace", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov")
PRODUCTS = (("tide table", "12.50"), ("sextant", "149.00"), ("storm lamp", "39.90"))


@dataclass
class Shop:
    """One connection of the application, and its count of committed changes."""

    connection: psycopg.Connection[tuple[Any, ...]]
    committed: Counter[tuple[str, str]] = field(default_factory=Counter)
    transactions: int = 0
    untouched: int = 0  # TOASTed values of updated rows that the update left alone
    quantities: Counter[int] = field(default_factory=Counter)  # changes by customer
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)  # changes, old and new
    noon: datetime | None = None  # the server's time between two transactions
    left_since_noon: Counter[str] = field(default_factory=Counter)  # statuses that were left
    _orders: int = 0

    def run(self, table: str, op: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """One statement as one transaction; the rows that it returns."""
        with self.transaction() as changes:
            return changes.run(table, op, statement, *values)

    @contextmanager
    def transaction(self) -> Iterator[Changes]:
        """Statements that become true together; they count once COMMIT has succeeded."""
        changes = Changes(self.connection)
        with self.connection.transaction():
            yield changes
        self.committed += changes.counts
        self.transactions += changes.counts.total() > 0

    def place_order(self) -> None:
        """An order of the next customer."""
        self._orders += 1
        number = self._orders
        insert = "INSERT INTO orders (id, customer, product, quantity) VALUES (%s, %s, %s, %s)"
        customer, product, quantity = 1 + number % 4, 1 + number % 3, 1 + number % 5
        self.run("orders", "insert", insert, number, customer, product, quantity)

    def advance(self, old: str, new: str, *, everything: bool = False) -> None:
        """Give another status to the oldest order that has this one, or to all of them."""
        which = "" if everything else f"AND id = (SELECT min(id) {_WITH_STATUS})"
        update = f"UPDATE orders SET status = %(new)s WHERE status = %(old)s {which} RETURNING id"
        with self.transaction() as changes:
            found = changes.run("orders", "update", update, {"old": old, "new": new})
        if found:
            self.statuses[old, new] += len(found)
            if self.noon is not None:
                self.left_since_noon[old] += len(found)

    def change_quantity(self) -> None:
        """The customer of some order that is not paid yet wants one more of it."""
        turn = self.quantities.total()
        some = f"SELECT id {_WITH_STATUS} ORDER BY (id * 7 + %(turn)s) %% 11, id LIMIT 1"
        update = f"UPDATE orders SET quantity = quantity + 1 WHERE id = ({some}) RETURNING customer"
        for (customer,) in self.run("orders", "update", update, {"old": "new", "turn": turn}):
            self.quantities[customer] += 1

    def cancel(self) -> None:
        """The newest order was a mistake."""
        self.run("orders", "delete", "DELETE FROM orders WHERE id = (SELECT max(id) FROM orders)")

    def raise_price(self, product: int) -> None:
        """The manual stays as it is, so the server does not send it: UNCHANGED, not NULL."""
        update = "UPDATE products SET price = round(price * 1.10, 2) WHERE id = %s RETURNING id"
        self.untouched += len(self.run("products", "update", update, product))

    def look_at_the_clock(self) -> None:
        """Noon: what is committed from now on has a later time."""
        found = self.connection.execute("SELECT clock_timestamp()").fetchone()
        self.noon = found[0] if found else None


@dataclass
class Changes:
    """The statements of one transaction."""

    connection: psycopg.Connection[tuple[Any, ...]]
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def run(self, table: str, op: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run it; the server says how many rows it changed."""
        named = values[0] if values and isinstance(values[0], dict) else values or None
        cursor = self.connection.execute(statement.encode(), named)
        self.counts[table, op] += cursor.rowcount if op in _COUNTED else 1
        return cursor.fetchall() if cursor.description else []


_COUNTED = ("insert", "update", "delete")
_WITH_STATUS = "FROM orders WHERE status = %(old)s"
