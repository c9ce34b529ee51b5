"""What others may rely on: the names of ``pgtide`` and its errors."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgtide
from pgtide import errors

ROOT = Path(__file__).parents[1]

PUBLIC = [
    "UNCHANGED",
    "Column",
    "Config",
    "Event",
    "Log",
    "Lsn",
    "Pipeline",
    "Position",
    "Shape",
    "Syncer",
    "__version__",
    "changes",
    "errors",
    "latest",
    "register",
    "session",
]


def test_the_public_names_are_these() -> None:
    assert pgtide.__all__ == PUBLIC
    assert dir(pgtide) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(pgtide, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Slot'"):
        pgtide.Slot  # noqa: B018


def tree(kind: type[errors.PgtideError]) -> Iterator[type[errors.PgtideError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


ERRORS = list(tree(errors.PgtideError))
KINDS = pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)


@KINDS
def test_errors_survive_pickling(kind: type[errors.PgtideError]) -> None:
    error = kind("a fact", detail="More of it.", hint="pgtide check")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.message, copy.detail, copy.hint) == ("a fact", "More of it.", "pgtide check")
    assert str(copy) == "a fact"


@KINDS
def test_errors_are_documented(kind: type[errors.PgtideError]) -> None:
    assert kind.__doc__
    assert f"`{kind.__name__}`" in (ROOT / "docs" / "OPERATIONS.md").read_text()


def test_the_drawn_tree_is_the_tree() -> None:
    drawing = errors.__doc__ or ""
    drawn = {}
    parents: list[tuple[int, str]] = []
    for line in drawing.splitlines():
        found = re.match(r"([ │├└─]*)([A-Z]\w+)(?:  |$)", line)
        if not found or found[2] not in vars(errors):
            continue
        depth = len(found[1])
        while parents and parents[-1][0] >= depth:
            parents.pop()
        drawn[found[2]] = parents[-1][1] if parents else None
        parents.append((depth, found[2]))
    real = {kind.__name__: (kind.__base__ or object).__name__ for kind in ERRORS[1:]}
    assert drawn == {"PgtideError": None, **real}


def test_every_error_that_is_raised_is_in_the_tree() -> None:
    """Classes elsewhere derive from these only to be caught where they are raised."""
    known = {kind.__name__ for kind in ERRORS}
    for path in (ROOT / "src").rglob("*.py"):
        if path.name == "errors.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                assert not bases & known or node.name.startswith("_"), f"{path.name}: {node.name}"
