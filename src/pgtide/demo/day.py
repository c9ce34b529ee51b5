"""A day in the shop: steady traffic, and what happens once.

Each half lasts some seconds and calls ``pause`` between two transactions, so that people
can watch. The morning ends with the kill, which is none of the shop's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

from pgtide.demo.workload import CLOSING, CUSTOMERS, MANUAL, PRODUCTS, VISITS, Shop

Pause = Callable[[], None]
Moment = Callable[[Shop], None]


def opening(shop: Shop) -> None:
    """Customers, products and the first orders."""
    with shop.transaction() as changes:
        for number, name in enumerate(CUSTOMERS, 1):
            email = name.split()[0].lower() + "@shop.example"
            insert = "INSERT INTO customers (id, name, email) VALUES (%s, %s, %s)"
            changes.run("customers", "insert", insert, number, name, email)
    for number, (name, price) in enumerate(PRODUCTS, 1):
        insert = f"INSERT INTO products (id, name, price, manual) VALUES (%s, %s, %s, {MANUAL})"
        shop.run("products", "insert", insert, number, name, price)


def raise_a_price(shop: Shop) -> None:
    shop.raise_price(2)


def rename_a_column(shop: Shop) -> None:
    shop.run("customers", "ddl", "ALTER TABLE customers RENAME COLUMN email TO contact")
    changed = "UPDATE customers SET contact = 'grace@navy.example' WHERE id = 2"
    shop.run("customers", "update", changed)


def reward_customers(shop: Shop) -> None:
    """DDL and rows in one transaction; customers that it does not touch have ten points too."""
    with shop.transaction() as changes:
        added = "ALTER TABLE customers ADD COLUMN points int NOT NULL DEFAULT 10"
        changes.run("customers", "ddl", added)
        changes.run("customers", "update", "UPDATE customers SET points = 20 WHERE id <= 2")


def change_ones_mind(shop: Shop) -> None:
    """Rolled back: must not show up anywhere."""
    with shop.connection.transaction(force_rollback=True):
        shop.connection.execute("DELETE FROM customers")
        shop.connection.execute("UPDATE orders SET status = 'lost'")


def while_nobody_listens(shop: Shop) -> None:
    """Business goes on after pgtide was killed."""
    shop.look_at_the_clock()
    shop.place_order()
    shop.advance("new", "paid")
    visits = "INSERT INTO visits (id, customer) SELECT n, 1 + n %% 4 FROM generate_series(1, %s) n"
    shop.run("visits", "insert", visits, VISITS)


def change_a_key(shop: Shop) -> None:
    shop.run("customers", "update", "UPDATE customers SET id = 40 WHERE id = 4")


def forget_visits(shop: Shop) -> None:
    shop.run("visits", "truncate", "TRUNCATE visits")
    again = "INSERT INTO visits (id, customer) SELECT n, 3 FROM generate_series(1, 5) n"
    shop.run("visits", "insert", again)


def raise_another_price(shop: Shop) -> None:
    shop.raise_price(3)


def closing(shop: Shop) -> None:
    """What is paid goes out; then the last event of all."""
    shop.advance("paid", "sent", everything=True)
    message = "SELECT pg_logical_emit_message(true, %s, %s)"
    shop.run("", "message", message, CLOSING, "the shop is closed")


MORNING: tuple[Moment, ...] = (raise_a_price, rename_a_column, reward_customers, change_ones_mind)
AFTERNOON: tuple[Moment, ...] = (change_a_key, forget_visits, raise_another_price)


def half_a_day(
    shop: Shop, moments: Sequence[Moment], seconds: float, pause: Pause, traffic: Iterator[Moment]
) -> None:
    """Traffic for some seconds, with the moments spread over them."""
    began = time.monotonic()
    for number, moment in enumerate(moments, 1):
        keep_busy(shop, pause, traffic, _at(began + seconds * number / (len(moments) + 1)))
        moment(shop)
    keep_busy(shop, pause, traffic, _at(began + seconds))


def _at(moment: float) -> Callable[[], bool]:
    return lambda: time.monotonic() >= moment


def keep_busy(
    shop: Shop, pause: Pause, traffic: Iterator[Moment], done: Callable[[], bool]
) -> None:
    """Traffic until something has happened; one transaction at least."""
    while True:
        next(traffic)(shop)
        pause()
        if done():
            return


def busy() -> Iterator[Moment]:
    """What goes on all day, for ever."""
    order: Moment = Shop.place_order
    quantity: Moment = Shop.change_quantity

    def pay(shop: Shop) -> None:
        shop.advance("new", "paid")

    def send(shop: Shop) -> None:
        shop.advance("paid", "sent")

    return cycle(
        (order, order, quantity, order, pay, quantity, order, send, pay, order, Shop.cancel)
    )
