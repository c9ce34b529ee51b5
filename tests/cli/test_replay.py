"""``pgtide replay``: what it asks first, and what it says it did."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.cli import run_command as pgtide
from pgtide.log.retention import retain
from pgtide.log.storage import Storage
from pgtide.log.table import open_table
from pgtide.position import Position
from tests.fixtures.capture import Captured
from tests.fixtures.spark import Staying


def test_the_command(
    spark: SparkSession,
    captured: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pgtide.cli.replay.spark_session", lambda config: Staying(spark))
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1), (2);\n")
    captured.capture()
    path = tmp_path / "pgtide.yaml"
    sink = {"type": "delta", "path": str(captured.directory / "lake")}
    path.write_text(json.dumps({**captured.settings, "pipelines": {"lake": {"sink": sink}}}))
    call = ["-c", str(path), "replay", "--pipeline", "lake"]

    def done() -> Any:
        assert pgtide([*call, "--yes", "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    first = done()
    assert (first["deleted"], first["read_again"]) == ([], [])
    assert Position.parse(first["position"]) >= captured.log.end

    changes = Storage(captured.config.log.path).child("changes")
    assert retain(changes, open_table(changes), [], 0.0, now=time.time() + 3 * 86_400)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert pgtide(call) != 0
    asked = capsys.readouterr().err
    assert "will be deleted and built anew:\n  public/t\n" in asked
    assert "read at the source again:\n  public.t\n" in asked
    assert (captured.directory / "lake" / "public" / "t").exists()
    again = done()
    assert (again["deleted"], again["read_again"]) == (["public/t"], ["public.t"])
