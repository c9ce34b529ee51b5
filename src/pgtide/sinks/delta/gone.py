"""Which relations had a table in a lake that was deleted, or replaced by another's.

After a lost checkpoint the log tells of them once more. What they got then has no place: part of
it may be passed over because another table has their name by now, and the rest would lack values.
Each leaves a note, ``_pgtide/gone/<source>/<relation>``, with the position of its end.
"""

from __future__ import annotations

from pgtide.errors import TargetError
from pgtide.log.files import delete, walk
from pgtide.log.own_files import understood
from pgtide.log.storage import Storage
from pgtide.position import Position
from pgtide.sinks.directories import OWN
from pgtide.sinks.target_storage import target_answers

_NOTES = f"{OWN}/gone"


class Gone:
    """The notes of one source in a lake."""

    def __init__(self, lake: Storage, source: str) -> None:
        self._lake = lake
        self._source = source

    def note(self, relation: int, at: Position) -> None:
        """Write down, before it happens, that a relation's table ends at a position."""
        with target_answers():
            self._lake.replace(self._note_of(relation), str(at).encode())

    def since(self, relation: int) -> Position | None:
        """The position at which a relation's table ended, None if none did."""
        path = self._note_of(relation)
        with target_answers():
            note = self._lake.read(path)
        if note is None:
            return None
        hint = "Delete it, if that table was not dropped."
        place = f"{self._lake.root}/{path}"
        with understood("the note of a dropped table", place, hint=hint, error=TargetError):
            return Position.parse(note.decode())

    def forget(self) -> None:
        """Remove all notes: a lake that is built anew has had no tables of this source."""
        with target_answers():
            for note in walk(self._lake, f"{_NOTES}/{self._source}"):
                delete(self._lake, note.path)

    def _note_of(self, relation: int) -> str:
        return f"{_NOTES}/{self._source}/{relation}"
