"""Names at a target: of columns, and of tables as parts of a path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pgtide.rules.cells import Cell

_PLAIN = re.compile(r"[A-Za-z0-9_.-]")


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


def directory(name: str) -> str:
    """A name as part of a path: bytes that a path or URL could misread become ``~XX``."""
    return "".join(
        char
        if _PLAIN.fullmatch(char) and name != "." * len(name)
        else "".join(f"~{byte:02X}" for byte in char.encode())
        for char in name
    )
