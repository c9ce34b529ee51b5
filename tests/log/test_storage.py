"""Storage that is not what it should be: each failure has its own error and says what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pgtide.config.model import Log as LogSettings
from pgtide.errors import ConfigError, LogError, LogUnavailable
from pgtide.log.reader import Log
from pgtide.log.storage import Storage
from pgtide.log.writer import LogWriter, create_log
from pgtide.position import Lsn
from tests.log.conftest import ORDERS


def _create(path: str) -> None:
    create_log(
        path,
        system_identifier="1",
        database="shop",
        slot="pgtide",
        start=Lsn(500),
        timeline=1,
        baseline=[ORDERS],
    )


def test_a_path_may_have_any_letters(tmp_path: Path) -> None:
    path = tmp_path / "log mit Leerzeichen, ünïcode-日本 #1? 100% foo:bar"
    _create(str(path))
    LogWriter(str(path), None, "pgtide").commit([], Lsn(600), 1)
    assert Log(path.as_uri()).position == 600
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["a%20b", "a\\b", "a[b", "a^b", "a|b", "a\nb"])
def test_a_path_that_delta_rs_would_not_find_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="a path has characters"):
        _create(str(tmp_path / name / "log"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["", "  "])
def test_an_empty_path_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="must not be empty"):
        LogSettings(path=path)


def test_a_store_that_nobody_knows_is_a_storage_error() -> None:
    with pytest.raises(LogUnavailable, match="made"):
        _create("nowhere://bucket/log")


def test_a_directory_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LogUnavailable, match="made"):
        _create(str(tmp_path / "file/log"))


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_links_ends_the_capture(
    small_log: Any, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(LogError, match="hard links") as caught:
        small_log.append([{"lsn": 1000}])
    assert "object store" in caught.value.hint
    assert not list(Path(small_log.changes.root).glob("_staged*"))


def test_a_full_disk_is_tried_again(small_log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(LogUnavailable, match="storage"):
        small_log.append([{"lsn": 1000}])


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    assert Storage("file:///tmp/with%20space").local == Path("/tmp/with space")
    assert Storage("../tide/./log").local == Path.cwd().parent / "tide" / "log"
    assert Storage("s3://bucket/log/").local is None
    assert Storage("s3://bucket/log/").root == "s3://bucket/log"
