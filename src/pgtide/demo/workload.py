"""The shop: what its application does, and what Postgres said it committed.

``Shop.committed`` is filled from the server's own row counts, after COMMIT, and
knows nothing of pgtide: the proof compares the log with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

TABLES = ("customers", "orders", "products", "visits")

# Text that does not compress below 2 kB is stored out of line (TOAST).
MANUAL = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 800) n)"
VISITS = 20_000

SCHEMA = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, email text);
CREATE TABLE products (id int PRIMARY KEY, name text NOT NULL, price numeric(8,2), manual text);
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, product int NOT NULL,
                     quantity int NOT NULL, status text NOT NULL DEFAULT 'new');
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
    orders: int = 0

    def run(self, table: str, op: str, statement: str, *values: Any) -> None:
        """One statement as one transaction."""
        with self.transaction() as changes:
            changes.run(table, op, statement, *values)

    @contextmanager
    def transaction(self) -> Iterator[Changes]:
        """Statements that become true together; they count once COMMIT has succeeded."""
        changes = Changes(self.connection)
        with self.connection.transaction():
            yield changes
        self.committed += changes.counts
        self.transactions += 1

    def place_orders(self, count: int) -> None:
        """Orders of the next customers, one transaction each."""
        for _ in range(count):
            self.orders += 1
            self.run(
                *("orders", "insert"),
                "INSERT INTO orders (id, customer, product, quantity) VALUES (%s, %s, %s, %s)",
                *(self.orders, 1 + self.orders % 4, 1 + self.orders % 3, 1 + self.orders % 5),
            )


@dataclass
class Changes:
    """The statements of one transaction."""

    connection: psycopg.Connection[tuple[Any, ...]]
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def run(self, table: str, op: str, statement: str, *values: Any) -> None:
        """Run it; the server says how many rows it changed."""
        cursor = self.connection.execute(statement.encode(), values or None)
        self.counts[table, op] += cursor.rowcount if op in _COUNTED else 1


_COUNTED = ("insert", "update", "delete")


def before_the_kill(shop: Shop) -> Iterator[None]:
    """A morning in the shop; pauses at each ``yield``."""
    with shop.transaction() as changes:
        for number, name in enumerate(CUSTOMERS, 1):
            email = name.split()[0].lower() + "@shop.example"
            insert = "INSERT INTO customers (id, name, email) VALUES (%s, %s, %s)"
            changes.run("customers", "insert", insert, number, name, email)
    yield
    for number, (name, price) in enumerate(PRODUCTS, 1):
        insert = f"INSERT INTO products (id, name, price, manual) VALUES (%s, %s, %s, {MANUAL})"
        shop.run("products", "insert", insert, number, name, price)
    yield
    shop.place_orders(4)
    yield
    # The manual stays as it is, so the server does not send it: UNCHANGED, not NULL.
    raised = "UPDATE products SET price = price * 1.10 WHERE id = 2"
    shop.run("products", "update", raised)
    yield
    renamed = "ALTER TABLE customers RENAME COLUMN email TO contact"
    shop.run("customers", "ddl", renamed)
    changed = "UPDATE customers SET contact = 'grace@navy.example' WHERE id = 2"
    shop.run("customers", "update", changed)
    yield
    with shop.transaction() as changes:  # DDL and rows in one transaction
        changes.run("customers", "ddl", "ALTER TABLE customers ADD COLUMN points int")
        changes.run("customers", "update", "UPDATE customers SET points = 10 * id WHERE id <= 2")
    yield
    with shop.connection.transaction(force_rollback=True):  # must not show up anywhere
        shop.connection.execute("DELETE FROM customers")
    shop.run("orders", "update", "UPDATE orders SET status = 'sent' WHERE id <= 2")
    shop.run("orders", "delete", "DELETE FROM orders WHERE id = 3")
    yield


def while_nobody_captures(shop: Shop) -> None:
    """Business goes on after the capture was killed."""
    shop.place_orders(2)
    visits = "INSERT INTO visits (id, customer) SELECT n, 1 + n %% 4 FROM generate_series(1, %s) n"
    shop.run("visits", "insert", visits, VISITS)


def after_the_restart(shop: Shop) -> Iterator[None]:
    """The evening; the last event is a message, so that readers know when to stop."""
    shop.place_orders(2)
    yield
    shop.run("customers", "update", "UPDATE customers SET id = 40 WHERE id = 4")
    shop.run("visits", "truncate", "TRUNCATE visits")
    yield
    with shop.transaction() as changes:
        changes.run("orders", "update", "UPDATE orders SET status = 'sent' WHERE status = 'new'")
        closing = "SELECT pg_logical_emit_message(true, %s, %s)"
        changes.run("", "message", closing, CLOSING, "the shop is closed")


CLOSING = "shop.closing"
