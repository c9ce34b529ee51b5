"""``pgtide version``."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import typer

from pgtide.cli.invocation import Invocation
from pgtide.version import __version__

LIBRARIES = ("deltalake", "numba", "pglast", "psycopg", "pyarrow")


def command(ctx: typer.Context) -> None:
    """Print the versions of pgtide and what it runs on.

    \b
    Example:
      pgtide version --json
    """
    versions = {"pgtide": __version__, "python": platform.python_version()}
    # From the packages' metadata: importing them would take a second.
    versions |= {name: metadata.version(name) for name in LIBRARIES}
    if ctx.ensure_object(Invocation).json:
        print(json.dumps(versions))
        return
    for name, version in versions.items():
        print(f"{name} {version}")
