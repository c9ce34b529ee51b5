"""Reading the log in order: what it holds as bounded chunks, then the stream of what comes.

Delta's stream begins with the files of the current version in no useful order. So a new
pipeline reads one version of the log, cut by position into chunks, and the stream begins at
that version, leaving out what the chunks had.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgtide.log.order import clusters
from pgtide.log.schema import CHANGES
from pgtide.log.snapshot import DataFile, Snapshot
from pgtide.log.storage import Storage
from pgtide.pipeline.relation_histories import Told
from pgtide.position import Lsn, Position
from pgtide.spark.paths import spark_path
from pgtide.spark.positions import at_or_after, at_or_before

MAX_FILES = 10_000  # per batch; the size of a batch is bounded in bytes
# Delta refuses a version older than the table's deletedFileRetentionDuration, minutes here, as
# if VACUUM had been there. Only pgtide cleans a log, and not what a registered reader needs.
BY_AGE = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"


class LogFrames:
    """The log as Spark sees it."""

    def __init__(self, spark: SparkSession, log: Storage) -> None:
        self._spark = spark
        self.path = spark_path(log.child(CHANGES).root)

    def version(self, version: int) -> DataFrame:
        """One version of the log, however old, that a reader is registered for."""
        self._spark.conf.set(BY_AGE, "false")
        reader = self._spark.read.format("delta").option("versionAsOf", version)
        return reader.load(self.path)

    def cuts(self, snapshot: Snapshot, start: Position, chunk_bytes: int) -> list[Position]:
        """Upper bounds that cut a version, from ``start`` on, into chunks of about that size.

        A transaction is cut too, if it is larger than a chunk: an initial snapshot is one LSN.
        """
        files = [file for file in snapshot.files if file.high >= start]
        if not files:
            return []
        last = Position.end_of(Lsn(max(file.high.lsn for file in files)))
        between = between_files(files, chunk_bytes)
        if between is not None:
            return [*between, last]
        count = -(-sum(file.size for file in files) // chunk_bytes)
        rows = self.version(snapshot.version).filter(at_or_after(start))
        found = rows.select(_shares("lsn", count)).head()
        bounds = Counter(found[0] if found else ())
        cuts = {Position.end_of(Lsn(lsn)) for lsn in bounds}
        # What is the bound of several chunks is larger than one.
        large = {lsn: times + 1 for lsn, times in bounds.items() if times > 1}
        return sorted({*cuts, *self._cuts_inside(rows, large), last})

    def _cuts_inside(self, rows: DataFrame, parts: dict[int, int]) -> list[Position]:
        """Bounds inside some LSNs, each with the number of parts that it is to have."""
        if not parts:
            return []
        most = max(parts.values())
        inside = rows.filter(F.col("lsn").isin(*parts)).groupBy("lsn")
        return [
            Position(Lsn(lsn), seqs[share * most // parts[lsn] - 1])
            for lsn, seqs in inside.agg(_shares("seq", most)).collect()
            for share in range(1, parts[lsn])
        ]

    def between(self, version: int, start: Position, until: Position) -> DataFrame:
        """Rows of a version from one position to another, both included."""
        rows = self.version(version).filter(F.col("lsn").between(int(start.lsn), int(until.lsn)))
        return rows.filter(at_or_after(start) & at_or_before(until))

    def told_before(self, version: int, position: Position, relations: Iterable[int]) -> list[Told]:
        """What the DDL of a transaction before a position in it told of some relations, in order.

        Only that is collected: a command may carry the whole text that its client sent.
        """
        seq, lsn = F.col("seq"), F.col("lsn")
        before = (lsn == int(position.lsn)) & (seq < position.seq) & (F.col("op") == "ddl")
        objects = F.from_json("payload", "objects array<string>")["objects"]
        told = self.version(version).filter(before).select("seq", F.posexplode(objects))
        theirs = F.get_json_object("col", "$.oid").cast("long").isin(*relations)
        found = sorted(told.filter(theirs).collect(), key=lambda row: (row["seq"], row["pos"]))
        return [Told(replace(position, seq=row["seq"]), json.loads(row["col"])) for row in found]

    def stream(self, start: int | None, after: Lsn, batch_bytes: int) -> DataFrame:
        """What is appended; ``start`` is given only while the checkpoint holds no offset.

        Spark checks it even when the checkpoint makes it meaningless, and refuses a version
        that has been cleaned since.
        """
        reader = self._spark.readStream.format("delta").option("maxBytesPerTrigger", batch_bytes)
        reader = reader.option("maxFilesPerTrigger", MAX_FILES).option("ignoreDeletes", True)
        if start is not None:
            reader = reader.option("startingVersion", start)
        return reader.load(self.path).filter(F.col("lsn") > int(after))


def between_files(files: Iterable[DataFile], chunk_bytes: int) -> list[Position] | None:
    """Bounds between files that make chunks of about that size; None where files are too large."""
    bounds: list[Position] = []
    size, high = 0, Position(Lsn(0))
    for together in _undivided(files, chunk_bytes):
        more, low = sum(file.size for file in together), together[0].low
        if more > chunk_bytes:
            return None
        if size and size + more // 2 > chunk_bytes:
            bounds.append(high if low.lsn == high.lsn else Position.end_of(high.lsn))
            size = 0
        size, high = size + more, max(file.high for file in together)
    return bounds


def _undivided(files: Iterable[DataFile], chunk_bytes: int) -> Iterator[list[DataFile]]:
    """Files that chunks should not part: they overlap, or a transaction goes on in the next one.

    But for a transaction that is larger than a chunk.
    """
    overlapping = list(clusters(files))
    begun: list[list[DataFile]] = []
    for cluster, behind in zip(overlapping, [*overlapping[1:], None], strict=True):
        begun.append(cluster)
        if behind is None or behind[0].low.lsn > max(file.high.lsn for file in cluster):
            whole = [file for part in begun for file in part]
            large = sum(file.size for file in whole) > chunk_bytes
            yield from begun if large else [whole]
            begun = []


def _shares(column: str, count: int) -> Column:
    """The values that cut a column into parts with about as many rows each."""
    shares = [number / count for number in range(1, count)]
    return F.percentile_approx(column, shares, F.lit(max(10_000, 20 * count)))


def bounds_of(start: Position, cuts: Sequence[Position], number: int) -> tuple[Position, Position]:
    """The first and the last position of one of the chunks that cuts make."""
    return (cuts[number - 1].next if number else start), cuts[number]
