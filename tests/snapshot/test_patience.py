"""A snapshot that fails for a passing reason begins anew, a few times."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from pgtide.errors import PgtideError, SlotBusy, SourceError, SourceUnavailable
from pgtide.snapshot.initial import InitialSnapshot
from pgtide.snapshot.patience import TRIES, take_patiently


class Hurried(threading.Event):
    """Waits for nothing."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


class Attempts:
    """Snapshots of which the first ones fail."""

    def __init__(self, *failures: PgtideError) -> None:
        self.failures = list(failures)
        self.made = 0

    def make(self) -> InitialSnapshot:
        self.made += 1
        return cast(InitialSnapshot, self)

    def take(self) -> bool:
        if self.failures:
            raise self.failures.pop(0)
        return True


def test_what_passes_is_tried_again() -> None:
    attempts = Attempts(SourceUnavailable("it restarts"), SourceUnavailable("it restarts"))
    take_patiently(attempts.make, Hurried())
    assert attempts.made == 3


@pytest.mark.parametrize("error", [SlotBusy("it is taken"), SourceError("it is wrong")])
def test_what_does_not_pass_is_told(error: PgtideError) -> None:
    attempts = Attempts(error)
    with pytest.raises(type(error)):
        take_patiently(attempts.make, Hurried())
    assert attempts.made == 1


def test_it_gives_up() -> None:
    attempts = Attempts(*(SourceUnavailable("it is gone") for _ in range(TRIES)))
    with pytest.raises(SourceUnavailable):
        take_patiently(attempts.make, Hurried())
    assert attempts.made == TRIES


def test_a_stop_ends_it() -> None:
    attempts, stop = Attempts(SourceUnavailable("it is gone")), Hurried()
    stop.set()
    with pytest.raises(SourceUnavailable):
        take_patiently(attempts.make, stop)
    assert attempts.made == 1
