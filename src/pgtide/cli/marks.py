"""Lines with ✓ ! ✗ in front: coloured on a terminal, plain in a pipe."""

from __future__ import annotations

import sys

MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


def print_line(level: str, text: str, hint: str = "") -> None:
    """Print one line, and its hint indented below."""
    mark, colour = MARKS[level]
    if not sys.stdout.isatty():
        print(f"{mark} {text}")
        for line in hint.splitlines():
            print(f"    {line}")
        return
    # Here, because scripts should not wait for rich.
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.print(Text.assemble((mark, f"bold {colour}"), " ", text), soft_wrap=True)
    for line in hint.splitlines():
        console.print(Text(f"    {line}", style="dim"), soft_wrap=True)
