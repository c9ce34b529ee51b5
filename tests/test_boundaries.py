"""The "never" rules of docs/ARCHITECTURE.md, checked on the imports of every module."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (SOURCE / "pgtide").rglob("*.py")
}

NO_IO = {
    "asyncio", "deltalake", "fcntl", "http", "io", "mmap", "os", "pathlib", "psycopg", "requests",
    "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile",
    "threading", "time", "urllib",
}  # fmt: skip
"""What wal/ may not import: files, sockets, processes, threads, the clock."""

JVM = {"pyspark", "py4j", "delta"}

WORDS = {"pgtide.log.schema"}
"""Names and Arrow types that everyone spells alike: no layer, so anyone may import them."""

NEVER = {
    "wal": NO_IO | JVM | {"pgtide.log", "pgtide.capture", "pgtide.postgres"},
    "log": JVM | {"psycopg", "pgtide.capture", "pgtide.postgres", "pgtide.wal"},
    "capture": JVM | {"pgtide.cli", "pgtide.demo"},
    "postgres": JVM | {"deltalake", "pyarrow", "pgtide.capture", "pgtide.wal"},
    "config": JVM | {"deltalake", "pyarrow", "pgtide.capture", "pgtide.log", "pgtide.postgres"},
    "sinks": {"pgtide.capture", "pgtide.cli"},
}
"""Folder, and the modules that nothing in it may import."""

BUCKETS = {"utils", "util", "common", "helpers", "helper", "misc", "types"}

LIGHT = ("numba", "numpy", "pyarrow", "deltalake", "psycopg", "pglast", "pydantic", "rich", "yaml")


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a file names in an import, at the top or inside a function."""
    return frozenset(_imports(ast.parse(path.read_text())))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that a search finds them"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


@pytest.mark.parametrize("folder", NEVER)
def test_layers(folder: str) -> None:
    for name, path in MODULES.items():
        if not is_within(name, f"pgtide.{folder}"):
            continue
        named = {i for i in imports(path) if not any(is_within(i, word) for word in WORDS)}
        broken = {i for i in named for other in NEVER[folder] if is_within(i, other)}
        assert not broken, f"{name} imports {broken}"


def test_the_rules_can_fail() -> None:
    assert "psycopg" in imports(MODULES["pgtide.postgres.connection"])
    assert any(is_within(name, "pgtide.log") for name in imports(MODULES["pgtide.capture.flow"]))


def test_foundations_import_nothing_of_ours_but_one_another() -> None:
    low = {"pgtide.position", "pgtide.errors", "pgtide.shape", "pgtide.version"}
    for name in low:
        ours = {i for i in imports(MODULES[name]) if is_within(i, "pgtide")}
        assert all(any(is_within(i, other) for other in low) for i in ours), name


def test_no_module_is_a_bucket() -> None:
    parts = {part for name in MODULES for part in name.split(".")}
    assert not parts & BUCKETS


@pytest.mark.parametrize(
    "statement", ["import pgtide", "import pgtide.cli", "import pgtide.errors"]
)
def test_doors_are_light(statement: str) -> None:
    probe = f"{statement}; import sys; print([n for n in {LIGHT} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import pgtide; pgtide.Log", {"numba", "psycopg", "pglast", "pyspark"}),
        ("import pgtide.wal.decoder", {"deltalake", "psycopg", "pglast", "pyspark"}),
        ("import pgtide.capture.engine", {"pyspark", "py4j", "typer"}),
    ],
)
def test_what_is_loaded_in_the_end(statement: str, absent: set[str]) -> None:
    probe = f"{statement}; import sys; print(sorted({absent} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
