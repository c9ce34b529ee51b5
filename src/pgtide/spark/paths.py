"""Paths of delta-rs as Hadoop names them, and its options as Spark's settings."""

from __future__ import annotations

from collections.abc import Mapping

_S3 = {
    "AWS_ENDPOINT_URL": "fs.s3a.endpoint",
    "AWS_ACCESS_KEY_ID": "fs.s3a.access.key",
    "AWS_SECRET_ACCESS_KEY": "fs.s3a.secret.key",
    "AWS_REGION": "fs.s3a.endpoint.region",
}


def spark_path(root: str) -> str:
    """The path for Spark."""
    return "s3a://" + root.removeprefix("s3://") if root.startswith("s3://") else root


def object_store_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Spark settings that mean the same as delta-rs's options for S3."""
    given = {name.upper(): value for name, value in options.items()}
    return {f"spark.hadoop.{_S3[name]}": given[name] for name in _S3 if name in given}
