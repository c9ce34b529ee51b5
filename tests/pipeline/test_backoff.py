"""Pauses between attempts grow, have an end, and are short again after progress."""

from __future__ import annotations

import pytest

from pgtide.pipeline.backoff import FIRST_S, LAST_S, Backoff


def test_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Backoff()
    monkeypatch.setattr("random.uniform", lambda _, most: most)
    pauses = [waits.next_pause() for _ in range(9)]
    assert pauses[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert pauses[-2:] == [LAST_S, LAST_S]
    waits.progressed()
    assert waits.next_pause() == FIRST_S


def test_not_all_at_once() -> None:
    """Several pipelines that one failure stops do not come back at the same moment."""
    assert len({Backoff().next_pause() for _ in range(5)}) > 1
