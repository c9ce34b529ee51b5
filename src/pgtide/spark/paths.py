"""Paths of delta-rs as Hadoop names them, and its options as Spark's settings."""

from __future__ import annotations

from collections.abc import Mapping

S3A = "spark.hadoop.fs.s3a."  # how Spark's settings for paths on S3 begin

_S3 = {
    "AWS_ENDPOINT_URL": "endpoint",
    "AWS_ACCESS_KEY_ID": "access.key",
    "AWS_SECRET_ACCESS_KEY": "secret.key",
    "AWS_SESSION_TOKEN": "session.token",
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
    settings = {setting: given[name] for name, setting in _S3.items() if name in given}
    if "endpoint" in settings and given.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST") != "true":
        settings["path.style.access"] = "true"  # delta-rs names the bucket in the path as well
    mine = {f"{S3A}bucket.{bucket}.{name}": value for name, value in settings.items()}
    return {f"{S3A}impl": "org.apache.hadoop.fs.s3a.S3AFileSystem", **mine}
