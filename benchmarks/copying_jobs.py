"""A child of ``copying``: schema, snapshot and rows in one warm session, when it is told to."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

import pgtide
from benchmarks.pipeline_jobs import cpu_seconds, peak_mb
from benchmarks.replica import contents
from benchmarks.report import progress
from pgtide.config import Config, load
from pgtide.config.sinks import PostgresSettings
from pgtide.pipeline.running import PipelineRun
from pgtide.snapshot.initial import InitialSnapshot
from pgtide.snapshot.request import Request, check_request
from pgtide.snapshot.target_schemas import TargetSchemas


def main(*configs: str) -> None:
    spark = pgtide.session()
    figures: dict[str, Any] = {"pgtide": [], "snapshot": []}
    used = 0.0
    for number, file in enumerate(configs):
        config = load(Path(file), {})
        print("ready", flush=True)
        sys.stdin.readline()
        before, began = cpu_seconds(), time.perf_counter()
        schemas = TargetSchemas(config, ["replica"])
        schemas.check(check_request(config, Request()))
        InitialSnapshot(config, spark, Request(), schemas=schemas).take()
        taken = time.perf_counter()
        PipelineRun(spark, config, "replica").run(until_current=True)
        ended = time.perf_counter()
        progress(f"pgtide {ended - began:.2f} s  (snapshot {taken - began:.2f} s)")
        spent = cpu_seconds() - before
        _compare(config)
        if number:  # the first is for warming up
            used += spent
            figures["pgtide"].append(ended - began)
            figures["snapshot"].append(taken - began)
    figures["cpu_s"] = used / (len(configs) - 1)
    figures["peak_rss_mb"] = peak_mb()
    print(json.dumps(figures))


def _compare(config: Config) -> None:
    """The target must have the rows of the source, and its key by now."""
    sink = config.pipelines["replica"].sink
    assert isinstance(sink, PostgresSettings)
    with psycopg.connect(sink.url.reveal()) as connection:
        key = connection.execute("SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass")
        if key.fetchone() != (1,):
            raise SystemExit("the target has no key")
    if contents(sink.url.reveal(), ["t"]) != contents(config.source.url.reveal(), ["t"]):
        raise SystemExit("the target is not equal to the source")


if __name__ == "__main__":
    main(*sys.argv[1:])
