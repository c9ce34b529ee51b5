"""Rules and routes that name a partition: its rows are its root's, so they would never apply.

Both ``pgtide check`` and a pipeline refuse them. No Spark here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pgtide.config.patterns import TablePatterns
from pgtide.config.rules import Route, Rule
from pgtide.errors import ConfigError
from pgtide.shape import Shape


def misplaced(
    items: Sequence[tuple[str, Rule | Route]], shapes: Iterable[Shape]
) -> Iterator[tuple[tuple[str, str], ConfigError]]:
    """By root: what names its partitions and not itself. ``items`` are rules with their places."""
    newest = {shape.oid: shape for shape in sorted(shapes, key=lambda shape: shape.id)}
    # Another table may have the name of a partition that is gone.
    named = {shape.name: shape for shape in newest.values()}
    partitions = [shape for shape in named.values() if shape.root_oid]
    for place, item in items if partitions else ():
        patterns = TablePatterns([item.table])
        for shape in partitions:
            root = shape.home_name
            if patterns.matches(shape.schema, shape.table) and not patterns.matches(*root):
                yield (
                    root,
                    ConfigError(
                        f"{place}: {item.table} matches {shape.name}, a partition of "
                        f"{'.'.join(root)}",
                        detail="Rows of a partition are those of its root.",
                        hint=f"name {'.'.join(root)}, or write a pattern that matches it too",
                    ),
                )
                break


def numbered(rules: Iterable[Rule], routes: Iterable[Route]) -> list[tuple[str, Rule | Route]]:
    """Each with its place in the configuration."""
    found: list[tuple[str, Rule | Route]] = []
    found += [(f"rule {at}", rule) for at, rule in enumerate(rules, start=1)]
    return found + [(f"route {at}", route) for at, route in enumerate(routes, start=1)]
