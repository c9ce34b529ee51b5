"""Which chunks go into which file."""

from __future__ import annotations

from pathlib import Path

from pgtide.log.source import LogSource
from pgtide.position import Lsn, Position
from pgtide.sinks.chunks import Chunk
from pgtide.sinks.ledger import Ledger
from pgtide.sinks.staging import Staging
from pgtide.sinks.target_storage import open_storage


def test_an_event_is_not_torn(tmp_path: Path) -> None:
    """A file is named by its first event, so rows of one event cannot begin two of them."""
    ledger = Ledger(open_storage(str(tmp_path), {}), "public/t")
    staging = Staging(ledger, "jsonl", 10, lambda _: "")
    for low, high, data in ((0, 1, b"123456\n"), (1, 1, b"654321\n"), (2, 2, b"2\n")):
        chunk = Chunk(0, Position(Lsn(7), low), Position(Lsn(7), high), data)
        staging.add(chunk)
    assert staging.high is not None
    names = staging.close()
    ledger.publish([f"public/t/{name}" for name in names], staging.high, LogSource("7", "d", "s"))
    files = sorted((tmp_path / "public" / "t").iterdir())
    assert [file.read_bytes() for file in files] == [b"123456\n654321\n", b"2\n"]
