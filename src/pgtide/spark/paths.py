"""Paths of delta-rs as Hadoop names them, and its options as Spark's settings."""

from __future__ import annotations

from collections.abc import Mapping

_S3 = {
    "AWS_ENDPOINT_URL": "endpoint",
    "AWS_ACCESS_KEY_ID": "access.key",
    "AWS_SECRET_ACCESS_KEY": "secret.key",
    "AWS_REGION": "endpoint.region",
}


def spark_path(root: str) -> str:
    """The path for Spark."""
    return "s3a://" + root.removeprefix("s3://") if root.startswith("s3://") else root


def object_store_settings(root: str, options: Mapping[str, str]) -> dict[str, str]:
    """Spark settings that mean the same as delta-rs's options for the bucket of a path."""
    place = spark_path(root)
    if not place.startswith("s3a://"):
        return {}
    bucket = place.removeprefix("s3a://").partition("/")[0]
    given = {name.upper(): value for name, value in options.items()}
    return {
        f"spark.hadoop.fs.s3a.bucket.{bucket}.{setting}": given[name]
        for name, setting in _S3.items()
        if name in given
    }
