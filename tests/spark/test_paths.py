"""Places in object stores, as Spark is told of them."""

from __future__ import annotations

from pgtide.cli.run import _object_stores
from pgtide.config import Config
from pgtide.spark.paths import spark_path


def test_every_bucket_has_its_own_settings() -> None:
    lake = {"type": "delta", "path": "s3://lake/a", "storage": {"aws_endpoint_url": "http://b"}}
    config = Config.model_validate(
        {
            "source": {"url": "postgresql://localhost/x", "slot": "s"},
            "log": {"path": "s3://tide/log", "storage": {"AWS_ENDPOINT_URL": "http://a"}},
            "pipelines": {
                "lake": {"sink": lake},
                "local": {"sink": {"type": "delta", "path": "/lake"}},
            },
        }
    )
    assert _object_stores(config) == {
        "spark.hadoop.fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.bucket.tide.endpoint": "http://a",
        "spark.hadoop.fs.s3a.bucket.tide.path.style.access": "true",
        "spark.hadoop.fs.s3a.bucket.lake.endpoint": "http://b",
        "spark.hadoop.fs.s3a.bucket.lake.path.style.access": "true",
    }
    assert spark_path("s3://lake/a") == "s3a://lake/a"
