"""Large files past the system's memory: the same bytes, wherever buffers begin and end."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from pgtide.log.direct_file import BUFFER_BYTES, DirectFile

SIZES = (0, 1, 4096, BUFFER_BYTES - 1, BUFFER_BYTES, 3 * BUFFER_BYTES, 3 * BUFFER_BYTES + 77)


@pytest.mark.parametrize("size", SIZES)
def test_what_was_written_is_there(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    file = DirectFile(tmp_path / "file")
    left = memoryview(data)
    while left:
        piece, left = left[:300_001], left[300_001:]
        file.write(pa.py_buffer(piece))
        assert file.tell() == size - len(left)
    file.close()
    assert (tmp_path / "file").read_bytes() == data


def test_one_piece_larger_than_all_buffers(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(5 * BUFFER_BYTES + 5)
    file = DirectFile(tmp_path / "file")
    file.write(b"head")
    file.write(data)
    file.close()
    assert (tmp_path / "file").read_bytes() == b"head" + data


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no file system in memory")
def test_a_file_system_in_memory() -> None:
    path = Path("/dev/shm") / f"pgtide-{os.getpid()}"
    try:
        file = DirectFile(path)
        file.write(bytes(BUFFER_BYTES + 5))
        file.close()
        assert path.read_bytes() == bytes(BUFFER_BYTES + 5)
    finally:
        path.unlink(missing_ok=True)


WITHOUT = """
import sys
from pathlib import Path
from pgtide.log.direct_file import BUFFER_BYTES, DirectFile

path = Path(sys.argv[1]) / "file"
file = DirectFile(path)
file.write(bytes(BUFFER_BYTES + 5))
file.close()
assert path.read_bytes() == bytes(BUFFER_BYTES + 5)
"""


def test_a_file_system_without_direct_writing(tmp_path: Path) -> None:
    """One that has no disk at all, in a mount namespace of its own."""
    mount = 'mount -t ramfs none "$1" || exit 77; exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, WITHOUT]
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"]).returncode:
        pytest.skip("nothing can be mounted here")
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode == 77:
        pytest.skip("nothing can be mounted here")
    assert ended.returncode == 0, ended.stderr


def test_an_error_of_the_thread_is_told(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BUFFER_BYTES, limits[1]))
    try:
        file = DirectFile(tmp_path / "file")
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            file.write(bytes(4 * BUFFER_BYTES + 1))
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
