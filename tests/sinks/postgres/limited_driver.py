"""A pipeline whose driver takes no more than a megabyte from its tasks; run with a configuration.

Prints what Spark says when the log's rows are collected nevertheless: the limit holds. And which
ways into the target the rows took.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

import pgtide
from pgtide.config import Config
from pgtide.log.reader import Log
from pgtide.pipeline.running import PipelineRun
from pgtide.sinks.postgres import initial_load, stager
from tests.sinks.postgres.replicas import PIPELINE


def telling(module: Any, name: str) -> None:
    """Have a function print its name when it has brought something."""
    function = getattr(module, name)

    def told(*given: Any) -> Any:
        found = function(*given)
        if found:
            print(name)
        return found

    setattr(module, name, told)


if __name__ == "__main__":
    config = Config.model_validate(json.loads(Path(sys.argv[1]).read_text()))
    telling(stager, "stage_lines")
    telling(stager, "stage_from_files")
    telling(initial_load, "load_rows")
    spark = pgtide.session(
        **{
            "spark.master": "local[2]",
            "spark.driver.maxResultSize": "1m",
            "spark.ui.enabled": False,
        }
    )
    PipelineRun(spark, config, PIPELINE).run(until_current=True)
    rows = spark.read.format("delta").load(Log(config.log.path).changes.root)
    try:
        rows.select(F.col("after")).collect()
    except Py4JJavaError as error:
        print(error.java_exception.getMessage())
