"""What pgtide needs of a Spark session, whoever made it.

Asked of every session that is to read a log or write a target: without Delta neither can be done,
and with a setting that Spark has for broken tables a part of the log would be left out unnoticed.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from pgtide.errors import ConfigError, EnvironmentMissing

SPARK = "4.1"

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

REFUSED = {
    "spark.sql.files.ignoreMissingFiles": "a batch whose files are gone would read as empty",
}


def check_session(spark: SparkSession) -> None:
    """Refuse a session that pgtide cannot work with."""
    if not spark.version.startswith(f"{SPARK}."):
        raise EnvironmentMissing(
            f"this is Spark {spark.version}, pgtide needs {SPARK}",
            hint=f"pip install 'pyspark=={SPARK}.*', and unset SPARK_HOME",
        )
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    catalog = spark.conf.get("spark.sql.catalog.spark_catalog", "") or ""
    if missing := missing_delta(extensions, catalog):
        raise ConfigError(
            "the Spark session has no Delta",
            detail="It can only be set before the session starts.",
            hint=f"start it with pgtide.session(), or with {' and '.join(missing)}",
        )
    for name, reason in REFUSED.items():
        if (spark.conf.get(name, None) or "").lower() == "true":
            raise ConfigError(
                f"{name} is refused",
                detail=f"With it {reason}.",
                hint=f'spark.conf.set("{name}", "false")',
            )


def missing_delta(extensions: str, catalog: str) -> list[str]:
    """The settings, as ``name=value``, that Delta lacks in a session with these two."""
    present = {
        "spark.sql.extensions": DELTA["spark.sql.extensions"] in extensions.split(","),
        "spark.sql.catalog.spark_catalog": catalog == DELTA["spark.sql.catalog.spark_catalog"],
    }
    return [f"{name}={DELTA[name]}" for name, there in present.items() if not there]
