"""The ledger of a table's files: what makes them appear once each, whatever is killed when.

Files are written out of sight, in ``_pgtide/<schema>/<table>``. Then the ledger there is
replaced: it names the files and the last position in them. Then they are moved to where they
belong. A file that the ledger does not name was never promised and is removed; one that it
names and that is still out of sight is moved when the sink is opened next. What a batch holds
up to the ledger's position is passed over, whoever has taken the files away since.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa

from pgtide.errors import TargetError
from pgtide.log.files import delete, walk
from pgtide.log.own_files import understood
from pgtide.log.source import LogSource
from pgtide.log.storage import Storage, sync_directory
from pgtide.position import Position
from pgtide.sinks.directories import OWN
from pgtide.sinks.target_storage import target_answers

LEDGER = "ledger.json"


class Ledger:
    """The files of one table, or of what belongs to none."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._home = f"{OWN}/{name}"
        self._source: dict[str, str] | None = None
        self._files: list[str] = []
        self.position: Position | None = None
        with target_answers():
            content = storage.read(f"{self._home}/{LEDGER}")
        if content is not None:
            self._load(content)

    def _load(self, content: bytes) -> None:
        path = f"{self._storage.root}/{self._home}/{LEDGER}"
        hint = "Restore it, or write to another path."
        with understood("the ledger of a file sink", path, hint=hint, error=TargetError):
            facts = json.loads(content)
            self._source = dict(facts["source"])
            self._files = list(facts["files"])
            self.position = Position.parse(facts["position"])

    def check(self, source: LogSource) -> None:
        """Refuse files of another log: its positions mean something else."""
        if self._source is not None and self._source != source.identity:
            raise TargetError(
                "the files are of another log",
                detail=f"{self._storage.root}/{self._home}/{LEDGER} names another source.",
                hint="Write to another path, or move the files of the other log away.",
            )

    def recover(self) -> None:
        """Finish what was promised before a crash, remove what was not."""
        with target_answers():
            left = {entry.path.rsplit("/", 1)[-1] for entry in walk(self._storage, self._home)}
            for file in self._files:
                if file.rsplit("/", 1)[-1] in left:
                    self._move(file)
            for name in left - {LEDGER} - {file.rsplit("/", 1)[-1] for file in self._files}:
                delete(self._storage, f"{self._home}/{name}")

    def open(self, name: str) -> pa.NativeFile:
        """A new file, out of sight."""
        with target_answers():
            if self._storage.local is not None:
                make_directories(self._storage.local, self._home)
            return self._storage.filesystem.open_output_stream(f"{self._home}/{name}")

    def publish(self, files: list[str], position: Position, source: LogSource) -> None:
        """Show files, by their paths, that were opened by their names and closed since."""
        facts = {"source": source.identity, "position": str(position), "files": files}
        with target_answers():
            for file in files:
                self._storage.sync(f"{self._home}/{file.rsplit('/', 1)[-1]}")
            self._storage.replace(f"{self._home}/{LEDGER}", json.dumps(facts).encode())
            self.position, self._files, self._source = position, files, source.identity
            for file in files:
                self._move(file)

    def _move(self, file: str) -> None:
        staged = f"{self._home}/{file.rsplit('/', 1)[-1]}"
        root = self._storage.local
        if root is None:
            self._storage.filesystem.copy_file(staged, file)
            delete(self._storage, staged)
            return
        make_directories(root, file.rpartition("/")[0])
        os.replace(root / staged, root / file)
        sync_directory((root / file).parent)


def ledgers(storage: Storage) -> list[Ledger]:
    """All that there are below a path."""
    with target_answers():
        found = [entry.path for entry in walk(storage, OWN)]
    homes = {path.removeprefix(f"{OWN}/").rpartition("/")[0] for path in found}
    return [Ledger(storage, home) for home in sorted(homes)]


def make_directories(root: Path, path: str) -> None:
    """Make a directory below another, its name durable as well."""
    here = root
    for part in path.split("/"):
        above, here = here, here / part
        if not here.is_dir():
            here.mkdir(exist_ok=True)
            sync_directory(above)
