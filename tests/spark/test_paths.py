"""Places in object stores, as Spark is told of them."""

from __future__ import annotations

import pytest

from pgtide.cli.run import _object_stores
from pgtide.config import Config
from pgtide.errors import ConfigError
from pgtide.spark.paths import object_store_settings, spark_path


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


def test_a_bucket_has_one_place_and_one_owner() -> None:
    """Spark would read the log of one store and write to the lake of another."""
    lake = {"type": "delta", "path": "s3://tide/lake", "storage": {"AWS_SECRET_ACCESS_KEY": "b"}}
    config = Config.model_validate(
        {
            "source": {"url": "postgresql://localhost/x", "slot": "s"},
            "log": {"path": "s3://tide/log", "storage": {"AWS_SECRET_ACCESS_KEY": "swordfish"}},
            "pipelines": {"lake": {"sink": lake}},
        }
    )
    with pytest.raises(ConfigError, match="two paths in one bucket") as refused:
        _object_stores(config)
    assert "swordfish" not in f"{refused.value.detail}{refused.value.hint}"


@pytest.mark.parametrize(
    "names",
    [
        "endpoint access_key_id secret_access_key token region",
        "endpoint_url access_key_id secret_access_key session_token default_region",
        "aws_endpoint aws_access_key_id aws_secret_access_key aws_token aws_default_region",
        "AWS_ENDPOINT_URL AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_REGION",
    ],
)
def test_whatever_delta_rs_calls_it(names: str) -> None:
    options = dict(zip(names.split(), ["http://a", "key", "secret", "token", "north"], strict=True))
    mine = "spark.hadoop.fs.s3a.bucket.lake"
    assert object_store_settings("s3://lake/a", options) == {
        "spark.hadoop.fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        f"{mine}.endpoint": "http://a",
        f"{mine}.access.key": "key",
        f"{mine}.secret.key": "secret",
        f"{mine}.session.token": "token",
        f"{mine}.endpoint.region": "north",
        f"{mine}.path.style.access": "true",
    }
