"""Names of columns that Spark can tell apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgtide.rules.cells import Cell


def target_names(cells: Sequence[Cell], reserved: Iterable[str] = ()) -> list[str]:
    """A name for each column: its own, with a number behind it when Spark could not tell it apart.

    Spark and Delta compare names without regard to case.
    """
    taken = {name.lower() for name in reserved}
    names = []
    for cell in cells:
        name, number = cell.name, 1
        while name.lower() in taken:
            number += 1
            name = f"{cell.name}__{number}"
        taken.add(name.lower())
        names.append(name)
    return names
