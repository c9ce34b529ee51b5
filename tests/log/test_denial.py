"""What an object store refuses for good is told from what may succeed later."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError

from pgtide.errors import (
    LogDenied,
    LogUnavailable,
    PgtideError,
    TargetError,
    TargetUnavailable,
    TerminalError,
    TransientError,
)
from pgtide.log.denial import denial
from pgtide.log.files import walk
from pgtide.log.storage import Storage
from pgtide.log.table import open_table
from pgtide.sinks.delta.target import Target
from pgtide.sinks.target_storage import target_answers
from pgtide.spark.failures import as_pgtide_error
from tests.fixtures.s3 import ObjectStore

WRONG = [
    ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "tide", "403 SignatureDoesNotMatch"),
    ({"AWS_ACCESS_KEY_ID": "wrong"}, "tide", "403 InvalidAccessKeyId"),
    ({}, "nowhere", "404 NoSuchBucket"),
]


def attempts(storage: Storage) -> list[Callable[[], object]]:
    target = Target(None, storage.root, storage.options)  # type: ignore[arg-type]  # not by Spark
    return [
        lambda: list(walk(storage, "a")),
        lambda: storage.write("a/b", b""),
        lambda: storage.filesystem.copy_file("a/b", "a/c"),
        target.open,
    ]


def of_target(attempt: Callable[[], object]) -> PgtideError:
    with pytest.raises((OSError, PgtideError)) as raised, target_answers():
        attempt()
    return as_pgtide_error(raised.value, "trying")


@pytest.mark.s3
@pytest.mark.parametrize(("options", "bucket", "answer"), WRONG)
def test_wrong_keys_and_buckets(
    object_store: ObjectStore, options: dict[str, str], bucket: str, answer: str
) -> None:
    storage = Storage(f"s3://{bucket}/denied", {**object_store.options, **options})
    with pytest.raises(LogDenied, match="refuses") as denied:
        open_table(storage)
    assert denied.value.detail == f"The store answered {answer}."
    assert "log.storage" in denied.value.hint
    for attempt in attempts(storage):
        error = of_target(attempt)
        assert isinstance(error, TargetError)
        assert error.detail.startswith(f"The store answered {answer}.")
        assert "pgtide run" in error.hint


def test_a_store_that_is_not_there_may_come() -> None:
    options = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "0",
    }
    storage = Storage("s3://tide/away", options)
    with pytest.raises(LogUnavailable):
        open_table(storage)
    for attempt in attempts(storage):
        assert isinstance(of_target(attempt), TargetUnavailable)


def answered(status: str, code: str) -> str:
    """As delta-rs tells it."""
    arrow = "\n   \x1b[31m↳\x1b[0m "
    body = f"{arrow}<?xml version='1.0'?><Error><Code>{code}</Code></Error>" if code else ""
    return (
        f"Generic S3 error{arrow}Error performing GET http://h/b/403 in 3ms - "
        f"Server returned non-2xx status code{arrow}{status}{body}\n"
    )


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        ("403 Forbidden", "AccessDenied", "403 AccessDenied"),
        ("403 Forbidden", "", "403"),
        ("401 Unauthorized", "", "401"),
        ("400 Bad Request", "ExpiredToken", "400 ExpiredToken"),
        ("404 Not Found", "ContainerNotFound", "404 ContainerNotFound"),
        ("404 Not Found", "NoSuchKey", None),
        ("403 Forbidden", "RequestTimeTooSkewed", None),
        ("400 Bad Request", "RequestTimeout", None),
        ("409 Conflict", "OperationAborted", None),
        ("429 Too Many Requests", "", None),
        ("500 Internal Server Error", "InternalError", None),
        ("503 Slow Down", "SlowDown", None),
        ("503 Service Unavailable", "", None),
    ],
)
def test_which_answers_stay(status: str, code: str, told: str | None) -> None:
    text = answered(status, code)
    expected = None if told is None else f"The store answered {told}."
    assert denial(OSError(text)) == expected
    error = as_pgtide_error(DeltaError(text), "merging")
    assert isinstance(error, TerminalError if told else TransientError)


@pytest.mark.parametrize(
    ("java", "terminal"),
    [
        ("java.nio.file.AccessDeniedException: s3a://b/t: delete: 403 AccessDenied", True),
        ("org.apache.hadoop.fs.s3a.UnknownStoreException: s3a://b/t: NoSuchBucket", True),
        ("java.nio.file.AccessDeniedException: s3a://b/t: 403: RequestTimeTooSkewed", False),
        ("org.apache.hadoop.fs.s3a.AWSServiceThrottledException: 503: SlowDown", False),
        ("org.apache.hadoop.fs.s3a.AWSStatus500Exception: 500: InternalError", False),
        ("org.apache.hadoop.fs.s3a.AWSApiCallTimeoutException: timed out", False),
        ("java.net.SocketTimeoutException: timed out", False),
    ],
)
def test_what_spark_is_told(java: str, terminal: bool) -> None:
    error = as_pgtide_error(Py4JError(f"An error occurred\n: {java}"), "deleting public.t")
    assert isinstance(error, TargetError if terminal else TargetUnavailable)
