"""Logs of small commits; as a child, the builder of an old one, or of an old past.

The builder really commits, through ``LogWriter`` with ``Maintenance``, but not in real time:
after each commit its clock moves by one flush interval, and commit files get the clock's time.
So maintenance compacts, checkpoints and cleans up as often, and finds files as old, as in a log
that took half a day. Now and then a DDL command gives the table another shape. The builder alone
does not fsync, and has maintenance run between two commits instead of beside them: in real time
it would be done by the next one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from pgtide.config import Config
    from pgtide.log.writer import LogWriter
    from pgtide.position import Lsn
    from pgtide.shape import Shape

ROWS_PER_COMMIT = 4
LSN_PER_COMMIT = 256
DDL_EVERY = 500  # commits, in the builder
REPORT_EVERY = 2_000
SLOT = "aged"
OID = 4_000_000_000  # of the one table; no table of a server has come so far


class Upkeep(Protocol):
    """What the writer of a log tells its maintenance."""

    def committed(self, *, busy: bool) -> None: ...
    def close(self) -> None: ...


class AgedLog:
    """A log with its writer and its upkeep; created if it is not there."""

    def __init__(self, path: Path, slot: str = SLOT, *, in_turn: bool = False) -> None:
        from pgtide.capture import upkeep
        from pgtide.config import Config
        from pgtide.log.shapes import ShapeStore
        from pgtide.log.storage import Storage
        from pgtide.log.writer import LogWriter, create_log
        from pgtide.position import Lsn

        create_log(
            str(path),
            system_identifier="1",
            database="postgres",
            slot=slot,
            start=Lsn(LSN_PER_COMMIT),
            timeline=1,
        )
        self.path = path
        self._writer = LogWriter(str(path), None, slot)
        self._shapes = ShapeStore(Storage(str(path)), self._writer.position)
        source = {"url": "postgresql:///postgres", "slot": slot}
        config = Config.model_validate({"source": source, "log": {"path": str(path)}})
        make = _UpkeepInTurn if in_turn else upkeep.Upkeep
        self._upkeep: Upkeep = make(config, self._writer)

    @property
    def version(self) -> int:
        return self._writer.version

    def append(self, *, ddl: bool = False) -> None:
        """What a flush of capture does, from rows to durable; ``ddl`` renames a column first."""
        from pgtide.position import Lsn

        lsn = Lsn(self._writer.position + LSN_PER_COMMIT)
        shape = self._shapes.assign(_shape(lsn) if ddl else self._shape(lsn))
        self._shapes.persist()
        parts = self._writer.write_part(_rows(lsn, shape.id, ddl=ddl))
        self._writer.commit(parts, lsn, 1)
        self._upkeep.committed(busy=False)

    def _shape(self, lsn: Lsn) -> Shape:
        return self._shapes.current.get(OID) or _shape(lsn)

    def close(self) -> None:
        """Let the round of maintenance that is running come to its end."""
        self._upkeep.close()


def _shape(lsn: Lsn) -> Shape:
    """The table's shape after one of its columns got a new name."""
    from pgtide.shape import Column, Shape

    columns = (
        Column("id", 20, type_name="bigint", attnum=1, nullable=False, key=True, identity=True),
        Column(f"note_{lsn}", 25, type_name="text", attnum=2),
    )
    return Shape(OID, "public", "orders", columns, since=lsn)


def _rows(lsn: int, shape: int = 1, *, ddl: bool = False) -> pa.Table:
    import pyarrow as pa

    from pgtide.log.schema import FILE_SCHEMA

    common: dict[str, Any] = {
        "lsn": lsn,
        "xid": lsn // LSN_PER_COMMIT,
        "committed_at": datetime.fromtimestamp(time.time(), UTC),
        "schema": "public",
        "table": "orders",
        "last": False,
    }
    insert = {**common, "op": "insert", "shape": shape, "after": [str(lsn), "a small row"]}
    rows = [{**insert, "seq": seq} for seq in range(ROWS_PER_COMMIT)]
    if ddl:
        statement = f"ALTER TABLE orders RENAME COLUMN note TO note_{lsn}"
        payload = json.dumps({"tag": "ALTER TABLE", "statement": statement})
        rows[0] = {**common, "seq": 0, "op": "ddl", "payload": payload}
    rows[-1]["last"] = True
    return pa.Table.from_pylist(rows, schema=FILE_SCHEMA)


class _UpkeepInTurn:
    """What ``capture.upkeep`` does in a thread, done before ``committed`` returns."""

    def __init__(self, config: Config, writer: LogWriter) -> None:
        from pgtide.log.maintenance import Maintenance

        self._writer = writer
        self._maintenance = Maintenance(config.log.path, None, config.log.retention)

    def committed(self, *, busy: bool) -> None:
        if self._maintenance.due(self._writer.version):
            self._maintenance.run_once()

    def close(self) -> None:
        pass


class _Clock:
    """Stands still except when it is moved."""

    def __init__(self, began: float) -> None:
        self.now = began

    def __call__(self) -> float:
        return self.now


def build(path: Path, commits: int, interval: float, slot: str = SLOT) -> None:
    """Make the old log, or a new one old, with a clock and without fsync in this process."""
    real = time.monotonic
    clock = _Clock(time.time() - commits * interval)
    # Before pgtide is imported: it keeps the functions that it finds then.
    time.time = time.monotonic = clock
    os.fsync = lambda fd: None
    from pgtide.log.schema import CHANGES
    from pgtide.log.table import commit_path

    began = real()
    log = AgedLog(path, slot, in_turn=True)
    dated = -1
    for number in range(1, commits + 1):
        log.append(ddl=number % DDL_EVERY == 0)
        clock.now += interval
        while dated < log.version:
            dated += 1
            os.utime(path / CHANGES / commit_path(dated), (clock.now, clock.now))
        if number % REPORT_EVERY == 0 or number == commits:
            rate = number / (real() - began)
            print(f"{number} commits, {rate:.0f}/s, {commits / rate:.0f} s in all", flush=True)
    log.close()
    print(json.dumps({"commits": commits, "seconds": real() - began}))


if __name__ == "__main__":
    build(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
