"""A table rebuilt from the events of a log, one by one: what every mirror must come to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pgtide import UNCHANGED
from pgtide.log.event import Event
from pgtide.position import Position

Row = dict[str, Any]


BEGINNING = Position.parse("0/0")


def replay(
    events: Iterable[Event], table: str, keys: tuple[str, ...], ghosts: Iterable[str] = ()
) -> dict[Any, Row]:
    """Rows by key; positions must grow, which is what makes the result right.

    ``ghosts``: keys that the target has from before, and the source has not.
    """
    state: dict[Any, tuple[Position, Row]] = {(key,): (BEGINNING, {}) for key in ghosts}
    last = BEGINNING
    for event in events:
        assert event.position > last
        last = event.position
        if event.table == table:
            _apply(event, state, keys)
    return {key: row for key, (_, row) in state.items()}


def _apply(event: Event, state: dict[Any, tuple[Position, Row]], keys: tuple[str, ...]) -> None:
    if event.op == "truncate":
        state.clear()
    elif event.op == "sweep":
        assert isinstance(event.payload, dict)
        _sweep(event.payload, state)
    elif event.op == "delete":
        assert event.before is not None
        state.pop(_key(event.before, keys), None)
    elif event.after is not None:
        old = _key(event.before or event.after, keys)
        known = state.pop(old, (event.position, {}))[1]
        row = {n: known.get(n, v) if v is UNCHANGED else v for n, v in event.after.items()}
        # A row of which a value was never sent comes whole later, by the refresh under way.
        if UNCHANGED not in row.values():
            state[_key(row, keys)] = (event.position, row)


def _sweep(payload: dict[str, Any], state: dict[Any, tuple[Position, Row]]) -> None:
    older = Position.parse(payload["older_than"])
    wanted = payload["keys"]
    for key, (position, _) in list(state.items()):
        inside = wanted is None or list(key) in wanted
        inside &= payload["low"] is None or int(key[0]) >= int(payload["low"])
        inside &= payload["high"] is None or int(key[0]) <= int(payload["high"])
        if inside and position < older:
            del state[key]


def _key(row: Any, keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(row[name] for name in keys)
