"""Fault points by name: where a test may end the process as a power cut would, or do something.

``PGTIDE_FAULT=name:n`` kills the process with SIGKILL when the point is passed
for the n-th time. A test in the same process may put a function into ``at_point``
instead. Without either a point costs two dictionary look-ups.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

_name, _, _count = os.environ.get("PGTIDE_FAULT", "").partition(":")
_left = {_name: int(_count or 1)} if _name else {}
at_point: dict[str, Callable[[], None]] = {}


def fault(name: str) -> None:
    """Pass the point; dies here if a test asked for it."""
    if name in at_point:
        at_point[name]()
    if name not in _left:
        return
    _left[name] -= 1
    if _left[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
