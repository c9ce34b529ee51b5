"""The jar files that Spark needs besides its own. ``python -m pgtide.spark.jars`` fetches them.

Spark's ``spark.jars.packages`` resolves Maven coordinates at every start. Here it
happens once per release of Delta and Spark: the files that Spark does not already
have are kept in the cache and named in ``spark.jars`` from then on. Those for S3 are
over 600 MB, and fetched when a path is there: ``python -m pgtide.spark.jars s3``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from pgtide.errors import EnvironmentMissing
from pgtide.spark import java
from pgtide.spark.cache import kept

SCALA = "2.13"
HADOOP = "hadoop-client-api"  # the jar that tells its version
S3 = "hadoop-aws"

FETCH_TIMEOUT_S = 900

RESOLVER = ("spark.jars.ivySettings", "spark.jars.repositories")
"""Settings of Spark that say where Maven artifacts come from."""

OUTPUT_TAIL_LINES = 15


def delta_package() -> str:
    """Maven coordinates of the Delta that the installed Python packages belong to."""
    spark = ".".join(metadata.version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{spark}_{SCALA}:{metadata.version('delta-spark')}"


def s3_package() -> str:
    """Maven coordinates of S3 for the Hadoop that the installed Spark has."""
    place = spark_home() / "jars"
    clients = list(place.glob(f"{HADOOP}-*.jar"))
    if len(clients) != 1:
        raise EnvironmentMissing(
            "which jar files Spark needs for S3 cannot be told",
            detail=f"{place} has {len(clients)} files {HADOOP}-*.jar, of which one says the "
            "version of Hadoop.",
            hint=f"Install PySpark anew: pip install --force-reinstall pyspark; or put {S3} of "
            "your Hadoop's version, with what it needs, beside them.",
        )
    return f"org.apache.hadoop:{S3}:{clients[0].stem.removeprefix(f'{HADOOP}-')}"


def delta_jars(conf: Mapping[str, str] | None = None) -> list[Path]:
    """The jar files of Delta, fetched the first time; ``conf`` may name the repositories."""
    return _jars(delta_package(), conf)


def s3_jars(conf: Mapping[str, str] | None = None) -> list[Path]:
    """The jar files for paths on S3, none where Spark has them, fetched the first time."""
    if any((spark_home() / "jars").glob(f"{S3}-*.jar")):
        return []
    return _jars(s3_package(), conf)


def _jars(package: str, conf: Mapping[str, str] | None) -> list[Path]:
    resolver = {name: value for name, value in (conf or {}).items() if name in RESOLVER}
    _, name, version = package.split(":")
    place = kept(f"jars/{name}-{version}", lambda draft: _fetch(package, draft, resolver))
    return sorted(place.glob("*.jar"))


def spark_home() -> Path:
    """The Spark inside the installed ``pyspark``."""
    # find_spec does not import it, which takes half a second.
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentMissing("PySpark is not installed", hint="pip install pgtide")
    return Path(spec.origin).parent


def _fetch(package: str, place: Path, resolver: Mapping[str, str]) -> None:
    """Let Spark's own resolver fetch ``package`` with what it needs, and keep what Spark lacks."""
    ivy = place / "ivy"
    options = {"spark.jars.packages": package, "spark.jars.ivy": str(ivy), **resolver}
    done = subprocess.run(
        [
            spark_home() / "bin" / "spark-submit",
            *(word for name, value in options.items() for word in ("--conf", f"{name}={value}")),
            # Packages are resolved on the way to a program: this one prints a version.
            *("--class", "org.apache.hadoop.util.VersionInfo", "spark-internal"),
        ],
        env=os.environ | {"JAVA_HOME": str(java.find().home), "SPARK_HOME": str(spark_home())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=FETCH_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise EnvironmentMissing(
            f"{package} could not be fetched",
            detail="\n".join(done.stdout.strip().splitlines()[-OUTPUT_TAIL_LINES:]),
            hint=(
                "connect to a Maven repository, or name yours in spark.jars.repositories or "
                "spark.jars.ivySettings, then run: python -m pgtide.spark.jars"
            ),
        )
    have = {_artifact(jar.name) for jar in (spark_home() / "jars").glob("*.jar")}
    for jar in (ivy / "jars").glob("*.jar"):
        name = jar.name.split("_", 1)[1]  # Ivy puts the group in front
        if _artifact(name) not in have:
            shutil.move(jar, place / name)
    shutil.rmtree(ivy)


def _artifact(file: str) -> str:
    """``delta-storage`` of ``delta-storage-4.4.0.jar``."""
    return re.sub(r"-\d[\w.-]*\.jar$", "", file)


if __name__ == "__main__":
    try:
        for jar in [*delta_jars(), *(s3_jars() if "s3" in sys.argv[1:] else ())]:
            print(jar)
    except EnvironmentMissing as error:
        print(f"error: {error.message}\n{error.detail}\nhint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
