"""Files appear once and whole, at whichever file operation the process dies."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pgtide.errors import TargetError, TargetUnavailable
from pgtide.log.files import walk
from pgtide.log.source import LogSource
from pgtide.log.storage import Storage
from pgtide.position import Lsn, Position
from pgtide.sinks.ledger import Ledger, ledgers
from pgtide.sinks.target_storage import open_storage
from tests.fixtures.capture import FORKS
from tests.fixtures.s3 import ObjectStore

SOURCE = LogSource("7", "shop", "tide")
OPERATIONS = {"open", "os.rename", "os.mkdir", "os.remove"}


def write_batch(path: Path, number: int) -> None:
    """A batch of two files, passed over if the ledger says it is done."""
    write_files(open_storage(str(path), {}), number)


def write_files(storage: Storage, number: int) -> None:
    for ledger in ledgers(storage):
        ledger.recover()
    ledger = Ledger(storage, "public/t")
    position = Position(Lsn(number), 1)
    if ledger.position is not None and position <= ledger.position:
        return
    names = [f"{number}-{part}.jsonl" for part in range(2)]
    for name in names:
        with ledger.open(name) as stream:
            stream.write(f"{name}\n".encode())
    ledger.publish([f"public/t/{name}" for name in names], position, SOURCE)


def dying(path: Path, number: int, at: int) -> None:
    """The same in a process that dies at its n-th file operation below the path."""
    left = at

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in OPERATIONS and str(path) in os.fspath(str(arguments[0])):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    write_batch(path, number)
    os._exit(0)


def visible(path: Path) -> dict[str, str]:
    files = (file for file in path.rglob("*.jsonl") if "_pgtide" not in file.parts)
    return {file.name: file.read_text() for file in files}


def killed_at(path: Path, number: int, at: int) -> bool:
    process = FORKS.Process(target=dying, args=(path, number, at))
    process.start()
    process.join(30)
    code = process.exitcode
    process.close()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def test_dying_anywhere(tmp_path: Path) -> None:
    whole = {f"{n}-{p}.jsonl": f"{n}-{p}.jsonl\n" for n in (1, 2) for p in range(2)}
    deaths, at, died = 0, 0, True
    while died:
        at += 1
        path = tmp_path / str(at)
        write_batch(path, 1)
        died = killed_at(path, 2, at)
        deaths += died
        shown = visible(path)
        assert shown.items() <= whole.items(), "whatever is visible is whole"
        # A consumer takes what it sees; the batch comes again.
        for file in path.glob("public/t/*"):
            file.unlink()
        write_batch(path, 2)
        later = visible(path)
        assert not shown.keys() & later.keys(), f"doubled after death {at}"
        assert shown | later == whole, f"lost after death {at}"
        staged = {file.name for file in (path / "_pgtide").rglob("*") if file.is_file()}
        assert staged == {"ledger.json"}
    assert deaths > 10


@pytest.mark.s3
def test_in_an_object_store(object_store: ObjectStore) -> None:
    storage = open_storage(object_store.path(), object_store.options)
    for number in (1, 2, 2):
        write_files(storage, number)
    names = [f"{n}-{p}.jsonl" for n in (1, 2) for p in range(2)]
    shown = {entry.path: storage.read(entry.path) for entry in walk(storage, "public")}
    assert shown == {f"public/t/{name}": f"{name}\n".encode() for name in names}
    assert [entry.path for entry in walk(storage, "_pgtide")] == ["_pgtide/public/t/ledger.json"]


def test_files_of_another_log_are_refused(tmp_path: Path) -> None:
    write_batch(tmp_path, 1)
    ledger = Ledger(open_storage(str(tmp_path), {}), "public/t")
    ledger.check(SOURCE)
    with pytest.raises(TargetError, match="of another log"):
        ledger.check(LogSource("8", "shop", "tide"))
    (tmp_path / "_pgtide/public/t/ledger.json").write_text("{}")
    with pytest.raises(TargetError, match="cannot be understood"):
        Ledger(open_storage(str(tmp_path), {}), "public/t")


def test_storage_that_refuses(tmp_path: Path) -> None:
    """It is the target that has a problem: one that may pass, unless the path is no path."""
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TargetError, match="cannot be used"):
            open_storage(str(path), {})
    storage = open_storage(str(tmp_path / "files"), {})
    (tmp_path / "files" / "_pgtide").write_text("in the way")
    with pytest.raises(TargetUnavailable, match="storage of a target failed"):
        Ledger(storage, "public/t").open("name")
