"""Rules and routes of a pipeline: filter, transform, exclude, include, rename, route.

``compile_rules`` makes Spark columns of them; ``pgtide.rules.checking`` compares
them with the catalog and needs no Spark, so names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgtide.rules.cells import Cell
    from pgtide.rules.compiling import TableRules, compile_rules

__all__ = ["Cell", "TableRules", "compile_rules"]

_HOMES = {
    "Cell": "pgtide.rules.cells",
    "TableRules": "pgtide.rules.compiling",
    "compile_rules": "pgtide.rules.compiling",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pgtide.rules' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
