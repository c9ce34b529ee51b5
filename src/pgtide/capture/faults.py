"""Fault points by name: where a test may end the process as a power cut would.

``PGTIDE_FAULT=name:n`` kills the process with SIGKILL when the point is passed
for the n-th time. Without the variable a point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal

_name, _, _count = os.environ.get("PGTIDE_FAULT", "").partition(":")
_left = {_name: int(_count or 1)} if _name else {}


def fault(name: str) -> None:
    """Pass the point; dies here if a test asked for it."""
    if name not in _left:
        return
    _left[name] -= 1
    if _left[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
