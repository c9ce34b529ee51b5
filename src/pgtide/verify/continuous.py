"""The slow verification in the background of ``pgtide run``.

A thread of its own passes over the mirrors of a pipeline again and again, at a limited rate, in
one session of the source and on one core of Spark. It never disturbs the pipeline: it runs
nothing but reads, and an error becomes its result. Where a table has one integer as its key, a
snapshot of the source is held for a minute or so, and the next part of the table gets another.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from pgtide.config.model import Config
from pgtide.errors import PgtideError
from pgtide.log.storage import Storage
from pgtide.spark.failures import as_pgtide_error
from pgtide.verify.results import VerifyFile, add, begun, finish
from pgtide.verify.verifying import Options, Verification

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

SNAPSHOT_S = 60  # that a snapshot is held at the limited rate, where a table can be cut


class ContinuousVerification:
    """Passes over one pipeline until it is told to stop; ``run`` is for a thread."""

    def __init__(
        self, spark: SparkSession, config: Config, pipeline: str, stop: threading.Event
    ) -> None:
        settings = config.pipelines[pipeline].verify
        assert settings is not None, "it is configured"
        self._spark = spark
        self._config = config
        self._pipeline = pipeline
        self._stop = stop
        self._settings = settings
        self._file = VerifyFile(Storage(config.log.path, config.log.storage), pipeline)

    def run(self) -> None:
        """Pass after pass; the first one begins at once."""
        while not self._stop.is_set():
            began = time.monotonic()
            self._pass()
            self._stop.wait(max(1.0, self._settings.interval - (time.monotonic() - began)))

    def _pass(self) -> None:
        result, failure = begun(), None
        options = Options(
            rate=self._settings.rate,
            part_rows=self._settings.rate * SNAPSHOT_S,
            gentle=True,
            run_here=False,
            stop=self._stop,
        )
        try:
            add(result, Verification(self._spark, self._config, self._pipeline, options).run())
        except Exception as error:
            failure = as_pgtide_error(error, f"verifying pipeline {self._pipeline}")
        if self._stop.is_set():
            return  # cut short: what the pass before it said stands
        finish(result, failure)
        try:
            self._file.save(result)
        except PgtideError as error:
            logger.warning("verification of %s was not saved: %s", self._pipeline, error.message)
        self._tell(result["differing"], failure)

    def _tell(self, differing: list[dict[str, object]], failure: PgtideError | None) -> None:
        if failure is not None:
            logger.warning("verification of %s failed: %s", self._pipeline, failure.message)
        for table in differing:
            logger.error(
                "pipeline %s: %s differs from the source; see: pgtide verify --pipeline %s",
                self._pipeline,
                table["table"],
                self._pipeline,
            )
