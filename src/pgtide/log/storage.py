"""Where the log lives: a local directory or an object store, made durable.

delta-rs does not fsync. On a local path every file that a confirmation depends
on goes through ``write`` or ``sync`` here: the file, then its directory. An
object store is durable when it answers.
"""

from __future__ import annotations

import errno
import io
import os
import re
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from pgtide.errors import ConfigError, LogDenied, LogError, LogUnavailable
from pgtide.log.denial import denial
from pgtide.log.direct_file import DirectFile

# delta-rs takes %20 for a space wherever it stands, and fails on the others.
_UNUSABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\\\[\]^|\x00-\x1f\x7f]")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class Storage:
    """One Delta table's files, by paths relative to its root."""

    def __init__(self, root: str, options: dict[str, str] | None = None) -> None:
        self.options = dict(options or {})
        if root.startswith("file://"):  # a local path in other words
            root = unquote(root.removeprefix("file://"))
        self.local: Path | None = None
        if "://" not in root:
            self.local = _usable(Path(os.path.abspath(root)))  # also without ..
            self.root = str(self.local)
        else:
            self.root = root.rstrip("/")
        self._known_directories: set[Path] = set()
        self._filesystem: fs.FileSystem | None = None

    def child(self, name: str) -> Storage:
        """The storage of a table below this one."""
        return Storage(f"{self.root}/{name}", self.options)

    @property
    def filesystem(self) -> fs.FileSystem:
        """The files as pyarrow sees them, with paths relative to the root."""
        if self._filesystem is None:
            if self.local is not None:
                self._filesystem = fs.SubTreeFileSystem(self.root, fs.LocalFileSystem())
            else:
                self._filesystem = fs.PyFileSystem(_ObjectStore(self.root, self.options))
        return self._filesystem

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Write a new file so that it survives a crash of the machine."""
        try:
            if self.local is None:
                with self.filesystem.open_output_stream(path) as stream:
                    stream.write(data)
                return
            target = self.local / path
            self._ensure_directory(target.parent)
            _write_durably(target, data)
            sync_directory(target.parent)
        except OSError as exc:
            raise unavailable(exc) from exc

    def begin(self, path: str) -> DirectFile:
        """Open a new file, to be written piece by piece; durable by ``sync`` once it is closed.

        On a local path only.
        """
        assert self.local is not None
        try:
            self._ensure_directory((self.local / path).parent)
            return DirectFile(self.local / path)
        except OSError as exc:
            raise unavailable(exc) from exc

    def create(self, path: str, data: bytes) -> bool:
        """Make a small file appear, whole and durable, unless there is one: False then.

        On a local path only.
        """
        assert self.local is not None
        staged, target = self.local / f"_staged-{uuid.uuid4()}", self.local / path
        try:
            try:
                _write_durably(staged, data)
                _link(staged, target)
            except FileExistsError:
                return False
            finally:
                staged.unlink(missing_ok=True)
            sync_directory(target.parent)
        except OSError as exc:
            raise unavailable(exc) from exc
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Write a small file durably, in one step: readers see the old one or the new one."""
        if self.local is None:
            self.write(path, data)
            return
        target = self.local / path
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        try:
            self._ensure_directory(target.parent)
            _write_durably(temporary, data)
            os.replace(temporary, target)
            sync_directory(target.parent)
        except OSError as exc:
            raise unavailable(exc) from exc

    def read(self, path: str) -> bytes | None:
        """A small file's bytes, None if there is none."""
        try:
            if self.local is not None:
                return (self.local / path).read_bytes()
            with self.filesystem.open_input_stream(path) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise unavailable(exc) from exc

    def sync(self, path: str) -> None:
        """Make a file that delta-rs wrote durable, with its directory."""
        if self.local is None:
            return
        try:
            descriptor = os.open(self.local / path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_directory((self.local / path).parent)
        except OSError as exc:
            raise unavailable(exc) from exc

    def exists(self, path: str) -> bool:
        """Whether a local path has that file."""
        return self.local is not None and (self.local / path).is_file()

    def require(self, directory: str) -> None:
        """Raise if a local directory is gone; delta-rs would quietly make another one."""
        if self.local is not None and not (self.local / directory).is_dir():
            raise LogUnavailable(
                "the log's directory is gone",
                detail=f"{self.local / directory} was there when the log was opened.",
                hint="Put it back; capture goes on by itself.",
            )

    def _ensure_directory(self, directory: Path) -> None:
        if directory in self._known_directories and directory.is_dir():
            return
        self.require("")
        if directory.parent != self.local and self.local in directory.parents:
            self._ensure_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)
        self._known_directories.add(directory)


class _ObjectStore(DeltaStorageHandler):
    """delta-rs's handler, whose files take bytes where pyarrow gives them its own buffers.

    And which copies: delta-rs's names an argument as its own code does not.
    """

    def copy_file(self, src: str, dst: str) -> None:
        self._handler.copy_file(src, dst)

    def open_output_stream(
        self, path: str, metadata: dict[str, str] | None = None
    ) -> pa.PythonFile:
        return pa.PythonFile(_Upload(self._handler.open_output_stream(path, metadata)), mode="w")


class _Upload(io.RawIOBase):
    """One object on its way into the store; it is there once this is closed."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return int(self._file.write(bytes(data)))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            super().close()


def _usable(path: Path) -> Path:
    found = _UNUSABLE.search(str(path))
    if found is not None:
        raise ConfigError(
            "a path has characters that the path of a log or a target cannot have",
            detail=f"{found.group()!r} in {str(path)!r} would lead to another place, or to none.",
            hint="Choose a path without \\ [ ] ^ |, control characters and percent codes.",
        )
    return path


def _link(staged: Path, target: Path) -> None:
    try:
        os.link(staged, target)
    except OSError as exc:
        if exc.errno not in _NO_LINKS:
            raise
        raise LogError(
            "the log's file system has no hard links",
            detail=f"{exc.strerror}, in {target.parent}. A commit cannot appear there in one step.",
            hint="Move the log to a local disk or an object store (s3://…) and set log.path.",
        ) from exc


def _write_durably(path: Path, data: bytes | memoryview) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def denied(exc: Exception) -> LogDenied | None:
    """The error for storage that will go on refusing, if that is what it says."""
    said = denial(exc)
    if said is None:
        return None
    return LogDenied(
        "the log's storage refuses access",
        detail=said,
        hint="Correct log.path (the bucket) or log.storage (keys and their rights), then run: "
        "pgtide check",
    )


def unavailable(exc: OSError) -> LogUnavailable | LogDenied:
    """The error for storage that refused: full, gone, read-only or unreachable; or for good."""
    return denied(exc) or LogUnavailable(
        "the log's storage failed",
        detail=f"{exc.strerror or type(exc).__name__}.",
        hint="Free space or repair the storage; nothing was confirmed, capture goes on by itself.",
    )
