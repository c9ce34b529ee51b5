"""What Spark and delta-rs raise, as errors of ours: terminal or not, and without row values."""

from __future__ import annotations

import re
from typing import Any

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from pgtide.errors import (
    EnvironmentMissing,
    LogError,
    PgtideError,
    PipelineError,
    TargetError,
    TargetUnavailable,
    Unrepresentable,
)
from pgtide.log.denial import denial
from pgtide.position import Position
from pgtide.spark.layout import MARKER, NOT_SENT

_REFUSED = re.compile(rf"({re.escape(MARKER)}|{re.escape(NOT_SENT)}) (.+) at ([0-9A-F/]+:\d+)")
_DAMAGED = "a row of the log does not fit its shape"
_CONFLICTS = ("Concurrent", "ProtocolChangedException", "MetadataChangedException")
_STORAGE = (
    *("java.net.", "java.io.IOException", "SdkClientException", "NoSuchFileException"),
    *("AWSServiceThrottledException", "AWSStatus500Exception", "AWSApiCallTimeoutException"),
    *("AWSNoResponseException", "AWSClientIOException", "RequestTimeTooSkewed"),
)
# What S3A makes of 401 and 403, of 404 for a bucket, and of keys that nobody gave.
_DENIED = re.compile(
    r"\b(AccessDeniedException(?=: s3)|UnknownStoreException|NoAuthWithAWSException"
    r"|NoAwsCredentialsException)\b"
)
# What a store says, below what delta-rs wanted of it.
_STORE = re.compile(r"Generic (?!DeltaTable )\w+ error")
_LOST = (
    *("SPARK_JOB_CANCELLED", "ExecutorLostFailure", "java.nio.channels."),
    "Python worker exited unexpectedly",  # killed: on one machine Spark tries no task again
)

# Nothing that pgtide writes itself fails like that.
_OF_VALUES = ("DIVIDE_BY_ZERO", "INVALID_INPUT", "OVERFLOW", "OUT_OF_RANGE", "INVALID_ARRAY_INDEX")
_OF_A_RULE = "Use try_cast, try_divide and the like in the SQL of the pipeline's rules."
_CONDITION = re.compile(r"Exception: \[([A-Z][A-Z0-9_.]+)\]")
_CAUSES = re.compile(r"\n(?::|Caused by:) ([\w.$]+)")


def as_pgtide_error(error: BaseException, doing: str) -> PgtideError:
    """The error for something that failed in Spark; ``doing`` completes "while …"."""
    if isinstance(error, PgtideError):
        return error
    text = str(error)
    if found := _REFUSED.search(text):
        return _refused(*found.groups())
    # What cannot be planned is told with the plan, which has this text in it.
    if _DAMAGED in text and not isinstance(error, AnalysisException):
        return LogError(
            "a row of the log does not fit its shape",
            detail=f"Found while {doing}.",
            hint="The log is damaged: restore it from a backup or start a new one.",
        )
    if said := denial(error) or _denial_of_spark(text):
        return target_denied(f"{said} It was asked while {doing}.")
    if any(name in text for name in (*_CONFLICTS, *_STORAGE, *_LOST)):
        return TargetUnavailable(
            "Spark could not read or write", detail=f"{_fact(error)} while {doing}."
        )
    if "JAVA_GATEWAY_EXITED" in text or "Connection refused" in text:
        return EnvironmentMissing("the Java process of Spark is gone", detail=f"While {doing}.")
    if isinstance(error, OSError):
        return TargetUnavailable(
            "storage failed", detail=f"{error.strerror or type(error).__name__} while {doing}."
        )
    if isinstance(error, DeltaError) and _STORE.search(text):
        return TargetUnavailable("storage failed", detail=f"{type(error).__name__} while {doing}.")
    if isinstance(error, DeltaError):
        return PipelineError("delta-rs failed", detail=f"{type(error).__name__} while {doing}.")
    if not isinstance(error, PySparkException | Py4JError):
        return PipelineError(f"unexpected {type(error).__name__}", detail=f"While {doing}.")
    if condition := _of_values(error):
        return PipelineError(
            "SQL of a rule fails for some row",
            detail=f"{condition} while {doing}.",
            hint=_OF_A_RULE,
        )
    return PipelineError("Spark failed", detail=f"{_fact(error)} while {doing}.")


def is_gone(spark: SparkSession) -> bool:
    """Whether the Java process has ended, or is about to."""
    context: Any = spark.sparkContext
    try:
        return bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError):
        return True


def target_denied(said: str) -> TargetError:
    """The error for a store that will go on refusing."""
    return TargetError(
        "the storage of a target refuses access",
        detail=said,
        hint="Correct path (the bucket) or storage (keys and their rights) of the pipeline's sink, "
        "then run: pgtide run",
    )


def _denial_of_spark(text: str) -> str | None:
    """What S3 refuses for good, as Hadoop names it."""
    found = _DENIED.search(text)
    if found is None or "RequestTimeTooSkewed" in text:
        return None
    return f"Spark was told {found[1]}."


def unsent_at(error: BaseException) -> Position | None:
    """Where a value was needed that nothing has sent, if that is what failed."""
    found = _REFUSED.search(str(error))
    if found is None or found[1] != NOT_SENT:
        return None
    return Position.parse(found[3])


def never_whole(table: str, where: str) -> Unrepresentable:
    """The error for an update without a large value, of a row that the target does not have."""
    return Unrepresentable(
        "a change does not carry all of its row, and the target has no row to take it from",
        detail=f"A large value of {table} was not sent at {where}; the row is older than the log, "
        "or a filter left it out until then.",
        hint=f"Have the table read again, then start the pipeline: pgtide refresh {table}. "
        "Or set on_unrepresentable: null. With REPLICA IDENTITY FULL it does not happen.",
    )


def _refused(marker: str, name: str, where: str) -> Unrepresentable:
    """The error for a refusal that stands in an expression of ours."""
    if marker == NOT_SENT:
        return never_whole(name, where)
    return Unrepresentable(
        "a value does not fit the type of its target column",
        detail=f"Column {name} holds one at {where}.",
        hint="Set on_unrepresentable to null or text for this pipeline.",
    )


def _of_values(error: BaseException) -> str | None:
    """The condition that a value did not meet; when rows are written it is below others."""
    found = [_java_fact(str(error))] if isinstance(error, Py4JError) else []
    inner: Any = error
    while isinstance(inner, PySparkException):
        found.append(inner.getCondition())
        inner = getattr(inner, "_cause", None)
    conditions = [condition for condition in found if condition is not None]
    return next((c for c in conditions if any(name in c for name in _OF_VALUES)), None)


def _fact(error: BaseException) -> str:
    """What is wrong, without the values that Spark's own messages may quote."""
    if isinstance(error, AnalysisException):
        return str(error).splitlines()[0][:300]
    if isinstance(error, PySparkException) and error.getCondition():
        return f"{type(error).__name__} {error.getCondition()}"
    if isinstance(error, Py4JError):
        return _java_fact(str(error)) or type(error).__name__
    return type(error).__name__


def _java_fact(text: str) -> str | None:
    """The condition that an exception of Java names, or its class with the first cause's."""
    if named := _CONDITION.search(text):
        return named[1]
    causes = _CAUSES.findall(text)
    return f"{causes[0]} by {causes[-1]}" if len(causes) > 1 else (causes or [None])[0]
