"""Paths of delta-rs as Hadoop names them, and its options as Spark's settings."""

from __future__ import annotations

from collections.abc import Mapping

S3A = "spark.hadoop.fs.s3a."  # how Spark's settings for paths on S3 begin

# Spark's name of each, and what delta-rs calls it, with or without AWS_ before it.
_S3 = {
    "endpoint": ("ENDPOINT_URL", "ENDPOINT"),
    "access.key": ("ACCESS_KEY_ID",),
    "secret.key": ("SECRET_ACCESS_KEY",),
    "session.token": ("SESSION_TOKEN", "TOKEN"),
    "endpoint.region": ("REGION", "DEFAULT_REGION"),
}
_BUCKET_IN_HOST = "VIRTUAL_HOSTED_STYLE_REQUEST"


def spark_path(root: str) -> str:
    """The path for Spark."""
    return "s3a://" + root.removeprefix("s3://") if root.startswith("s3://") else root


def object_store_settings(root: str, options: Mapping[str, str]) -> dict[str, str]:
    """Spark settings that mean the same as delta-rs's options for the bucket of a path."""
    place = spark_path(root)
    if not place.startswith("s3a://"):
        return {}
    bucket = place.removeprefix("s3a://").partition("/")[0]
    given = {name.upper().removeprefix("AWS_"): value for name, value in options.items()}
    settings = {
        setting: given[name]
        for setting, names in _S3.items()
        for name in reversed(names)
        if name in given
    }
    if "endpoint" in settings and given.get(_BUCKET_IN_HOST, "").lower() != "true":
        settings["path.style.access"] = "true"  # delta-rs names the bucket in the path as well
    mine = {f"{S3A}bucket.{bucket}.{name}": value for name, value in settings.items()}
    return {f"{S3A}impl": "org.apache.hadoop.fs.s3a.S3AFileSystem", **mine}
