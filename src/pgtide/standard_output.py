"""A reader of stdout that leaves early, as ``| head`` does, has seen enough: no failure."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stdout_may_close() -> Iterator[None]:
    """End the block, without an error, where it prints and nobody reads."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not _unread():
            raise  # some other pipe or socket
        # Python flushes stdout once more at exit; give it something that takes it.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _unread() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are reported without being asked for
    return bool(poll.poll(0))
