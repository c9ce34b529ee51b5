"""A pipeline whose driver takes no more than a megabyte from its tasks; run with a configuration.

Prints what Spark says when the log's rows are collected nevertheless: the limit holds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

import pgtide
from pgtide.config import Config
from pgtide.log.reader import Log
from pgtide.pipeline.running import PipelineRun
from tests.sinks.postgres.replicas import PIPELINE

if __name__ == "__main__":
    config = Config.model_validate(json.loads(Path(sys.argv[1]).read_text()))
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
