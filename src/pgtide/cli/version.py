"""``pgtide version``."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import typer

from pgtide.cli.invocation import Invocation
from pgtide.errors import EnvironmentMissing
from pgtide.version import __version__

LIBRARIES = ("delta-spark", "deltalake", "numba", "pglast", "psycopg", "pyarrow", "pyspark")


def command(ctx: typer.Context) -> None:
    """Print the versions of pgtide and what it runs on.

    \b
    Example:
      pgtide version --json
    """
    versions: dict[str, str | None] = {"pgtide": __version__, "python": platform.python_version()}
    # From the packages' metadata: importing them would take a second.
    versions |= {name: metadata.version(name) for name in LIBRARIES}
    versions["java"] = _java()
    if ctx.ensure_object(Invocation).json:
        print(json.dumps(versions))
        return
    for name, version in versions.items():
        print(f"{name} {version or 'missing'}")


def _java() -> str | None:
    """The version of the Java that Spark would run on; capture needs none."""
    from pgtide.spark import java

    try:
        return java.find().version
    except EnvironmentMissing:
        return None
