"""Notes of tables that a lake no longer has."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtide.errors import TargetError
from pgtide.log.storage import Storage
from pgtide.position import Lsn, Position
from pgtide.sinks.delta.gone import Gone
from tests.fixtures.s3 import ObjectStore

SOURCE = "7000/a%20b%2Fc/tide"  # names are quoted as in a URL
END = Position(Lsn(500), 3)


def check_notes(lake: Storage) -> None:
    gone, other = Gone(lake, SOURCE), Gone(lake, "7000/other/tide")
    assert gone.since(7) is None
    gone.forget()
    other.note(7, END)
    gone.note(7, Position(Lsn(400)))
    gone.note(7, END)
    assert (gone.since(7), gone.since(8)) == (END, None)
    gone.forget()
    assert (gone.since(7), other.since(7)) == (None, END)


def test_on_a_path(tmp_path: Path) -> None:
    check_notes(Storage(str(tmp_path)))


@pytest.mark.slow
def test_in_an_object_store(object_store: ObjectStore) -> None:
    check_notes(Storage(object_store.path(), object_store.options))


def test_a_note_that_says_nothing(tmp_path: Path) -> None:
    lake = Storage(str(tmp_path))
    lake.replace(f"_pgtide/gone/{SOURCE}/7", b"nonsense")
    with pytest.raises(TargetError, match="the note of a dropped table cannot be understood"):
        Gone(lake, SOURCE).since(7)
