"""Data files: how rows lie in Parquet, and what the Delta log says about a file.

``add`` actions carry statistics, which data skipping and ordered reading rely on. Their
``modificationTime`` is when the newest row of the file was logged, by this machine's clock,
and it outlives compaction: retention counts from there.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

STATISTICS = ("lsn", "seq", "schema", "table", "op")
SMALL_BYTES = 65_536  # of rows in memory
PARQUET_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    # Not the numbers of transactions: too many, and zstd does better without.
    "use_dictionary": ["op", "schema", "table", "shape"],
    "write_statistics": list(STATISTICS),
    "store_schema": False,  # the dictionaries are ours; readers get plain strings
}

# Setting zstd up for each column takes longer than the rest of writing and reading such a file.
SMALL_PARQUET_OPTIONS = {**PARQUET_OPTIONS, "compression": "snappy", "compression_level": None}


def new_path(day: date) -> str:
    """A name for a file that nobody has yet."""
    return f"day={day.isoformat()}/{uuid.uuid4()}.parquet"


def now_ms() -> int:
    """The time as the Delta log has it: Unix milliseconds."""
    return int(time.time() * 1000)


def add_action(
    path: str,
    size: int,
    day: date,
    statistics: dict[str, Any],
    *,
    logged_at_ms: int,
    data_change: bool,
) -> AddAction:
    """What makes a file part of the log."""
    return AddAction(
        path,
        size,
        {"day": day.isoformat()},
        logged_at_ms,
        data_change,
        json.dumps(statistics),
    )


def file_statistics(rows: pa.Table) -> dict[str, Any]:
    """The statistics of an ``add`` action."""
    minimum, maximum, nulls = {}, {}, {}
    for name in STATISTICS:
        column: Any = rows.column(name)
        if pa.types.is_dictionary(column.type):
            column = pc.unique(column).cast(pa.string())
        nulls[name] = rows.column(name).null_count
        bounds: Any = pc.min_max(column).as_py()
        if bounds["min"] is not None:
            minimum[name], maximum[name] = bounds["min"], bounds["max"]
    return {
        "numRecords": rows.num_rows,
        "minValues": minimum,
        "maxValues": maximum,
        "nullCount": nulls,
    }


def merged_statistics(left: dict[str, Any] | None, right: dict[str, Any]) -> dict[str, Any]:
    """The statistics of two sets of rows together; None: there are no others."""
    if left is None:
        return right
    merged: dict[str, Any] = {"numRecords": left["numRecords"] + right["numRecords"]}
    for key, choose in (("minValues", min), ("maxValues", max)):
        merged[key] = {**left[key], **right[key]}
        for name in left[key].keys() & right[key].keys():
            merged[key][name] = choose(left[key][name], right[key][name])
    nulls = {name: count + right["nullCount"][name] for name, count in left["nullCount"].items()}
    return {**merged, "nullCount": nulls}
