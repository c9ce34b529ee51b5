"""Reading the log in order: what it holds as bounded chunks, then the stream of what comes.

Delta's stream begins with the files of the current version in no useful order. So a new
pipeline reads one version of the log, cut by position into chunks, and the stream begins at
that version, leaving out what the chunks had.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgtide.log.schema import CHANGES
from pgtide.log.snapshot import Snapshot
from pgtide.log.storage import Storage
from pgtide.position import Lsn
from pgtide.spark.paths import spark_path

MAX_FILES = 10_000  # per batch; the size of a batch is bounded in bytes


class LogFrames:
    """The log as Spark sees it."""

    def __init__(self, spark: SparkSession, log: Storage) -> None:
        self._spark = spark
        self.path = spark_path(log.child(CHANGES).root)

    def version(self, version: int) -> DataFrame:
        """One version of the log."""
        reader = self._spark.read.format("delta").option("versionAsOf", version)
        return reader.load(self.path)

    def cuts(self, snapshot: Snapshot, start: Lsn, chunk_bytes: int) -> list[Lsn]:
        """Upper bounds that cut a version, from ``start`` on, into chunks of about that size.

        A transaction is never cut, so a chunk may be larger than that.
        """
        files = [file for file in snapshot.files if file.high.lsn >= start]
        if not files:
            return []
        last = Lsn(max(file.high.lsn for file in files))
        count = -(-sum(file.size for file in files) // chunk_bytes)
        if count <= 1:
            return [last]
        shares = [number / count for number in range(1, count)]
        rows = self.version(snapshot.version).filter(F.col("lsn") >= int(start))
        accuracy = F.lit(max(10_000, 20 * count))
        found = rows.select(F.percentile_approx("lsn", shares, accuracy)).head()
        return sorted({*(Lsn(bound) for bound in (found[0] if found else ())), last})

    def between(self, version: int, after: Lsn, until: Lsn) -> DataFrame:
        """Rows of a version with ``after < lsn <= until``."""
        lsn = F.col("lsn")
        return self.version(version).filter((lsn > int(after)) & (lsn <= int(until)))

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
