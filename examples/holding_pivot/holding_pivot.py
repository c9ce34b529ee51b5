"""Three questions about bank.holding, answered without asking the bank's database.

python examples/holding_pivot/holding_pivot.py

Starts a private Postgres, runs ``bank.sql`` on it, brings the changes into a pivot table with
the ``pgtide.yaml`` beside this file, and asks that table. Everything is gone afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession

import pgtide
from pgtide.postgres.embedded import EmbeddedPostgres

HERE = Path(__file__).parent
PIVOT = Path("olap", "bank", "holding_pivot")

STOCK_CHANGES = """
    SELECT count(*) FROM {holding_pivot}
    WHERE change_field = 'holding_stock' AND old_value IS NOT NULL
      AND old_value IS DISTINCT FROM new_value
      AND user_id = {user}
"""

QUANTITY_CHANGES = """
    SELECT count(*) FROM {holding_pivot}
    WHERE change_field = 'holding_quantity' AND old_value IS NOT NULL
      AND old_value <> new_value
      AND user_id = {user}
"""

MOST_SOLD = """
    SELECT old_value FROM {holding_pivot}
    WHERE change_field = 'holding_stock' AND old_value IS NOT NULL
      AND old_value IS DISTINCT FROM new_value
      AND coalesce(datetime_updated, datetime_deleted)
          BETWEEN TIMESTAMP {first} AND TIMESTAMP {last}
    GROUP BY old_value
    ORDER BY count(*) DESC, old_value
    LIMIT 1
"""


def stock_changes(pivot: DataFrame, user: int) -> int:
    """How many times did a user change stock types? A sale of all of it counts."""
    return int(ask(pivot, STOCK_CHANGES, user=user) or 0)


def quantity_changes(pivot: DataFrame, user: int) -> int:
    """How many times did a user change the quantity of a stock that they kept?"""
    return int(ask(pivot, QUANTITY_CHANGES, user=user) or 0)


def most_sold(pivot: DataFrame, first: datetime, last: datetime) -> str | None:
    """Between two dates, what was the most commonly sold stock among all users?"""
    found = ask(pivot, MOST_SOLD, first=str(first), last=str(last))
    return None if found is None else str(found)


def ask(pivot: DataFrame, question: str, **values: Any) -> Any:
    """The one value that a query gives, None if it gives none."""
    rows = pivot.sparkSession.sql(question, holding_pivot=pivot, **values).collect()
    return rows[0][0] if rows else None


def statements() -> Iterator[str]:
    """The statements of ``bank.sql``, each to be a transaction."""
    yield from (part for part in (HERE / "bank.sql").read_text().split(";\n") if part.strip())


def main() -> None:
    with TemporaryDirectory(prefix="holding-pivot-") as name:
        home = Path(name)
        home.chmod(0o755)  # the server may have to run as another user
        copy(HERE / "pgtide.yaml", home)
        with EmbeddedPostgres(home / "postgres") as server:
            environment = {**os.environ, "DATABASE_URL": server.url()}
            command("init", home, environment)
            with psycopg.connect(server.url(), autocommit=True) as connection:
                for statement in statements():
                    connection.execute(statement.encode())
            command("run --until-current", home, environment)
        show(pgtide.session(), home / PIVOT)


def command(line: str, home: Path, environment: dict[str, str]) -> None:
    print(f"$ pgtide {line}", flush=True)
    start = [sys.executable, "-c", "from pgtide.cli import main; main()"]
    subprocess.run([*start, *line.split()], cwd=home, env=environment, check=True)


def show(spark: SparkSession, path: Path) -> None:
    pivot = spark.read.format("delta").load(str(path))
    pivot.orderBy("datetime_inserted", "holding_id").show(50, truncate=False)
    print("Stock changes of user 3:", stock_changes(pivot, 3))
    print("Quantity changes of user 3:", quantity_changes(pivot, 3))
    print("Most sold stock of all times:", most_sold(pivot, datetime(2000, 1, 1), datetime.now()))


if __name__ == "__main__":
    main()
