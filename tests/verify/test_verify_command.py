"""``pgtide verify`` as people call it, its repair, and the pass in the background."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgtide.cli import run_command as run
from pgtide.cli.attached import command_line
from pgtide.cli.invocation import Invocation
from pgtide.config import Config
from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from pgtide.pipeline.supervisor import Supervisor
from pgtide.verify.repair import request
from pgtide.verify.report import REPAIRED, TableReport
from pgtide.verify.results import VerifyFile
from tests.fixtures.capture import Captured
from tests.fixtures.spark import Staying
from tests.fixtures.waiting import wait_until
from tests.verify.lake import place

ROWS = """CREATE TABLE t (id int PRIMARY KEY, secret text);
INSERT INTO t SELECT n, 'hidden' || n FROM generate_series(1, 500) n;
"""


@pytest.fixture
def config_file(spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("pgtide.cli.verify.spark_session", lambda config: Staying(spark))
    document = {
        **captured.settings,
        "pipelines": {
            "lake": {"sink": {"type": "delta", "path": str(captured.directory / "lake")}},
            "files": {"sink": {"type": "file", "path": str(captured.directory / "files")}},
        },
    }
    file = captured.directory / "pgtide.yaml"
    file.write_text(json.dumps(document))
    return file


def test_the_command(
    spark: SparkSession,
    captured: Captured,
    config_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    captured.run(ROWS)
    call = ["-c", str(config_file), "verify"]
    assert run(call) == 0
    out = capsys.readouterr().out
    assert "✓ lake: public.t is equal: 500 rows" in out
    assert "! pipeline files is not verified: a file sink" in out
    assert run([*call, "--pipeline", "files"]) == 1
    assert run([*call, "--table", "public.nothing"]) == 2
    spark.sql(f"UPDATE {place(captured, 't')} SET secret = 'other' WHERE id = 250")
    capsys.readouterr()
    assert run([*call, "-p", "lake"]) == 1
    shown = capsys.readouterr()
    assert "    different: id = 250 in secret\n" in shown.out
    assert "hidden" not in shown.out + shown.err
    assert run([*call, "-p", "lake", "--sample", "1", "--seed", "x", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (pipeline,) = document["pipelines"]
    assert (document["equal"], pipeline["seed"]) == (False, "x")
    assert pipeline["tables"][0]["differences"] == [
        {"kind": "different", "key": ["250"], "columns": ["secret"]}
    ]


def test_repairing_the_differing_rows(
    spark: SparkSession,
    captured: Captured,
    config_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    captured.run(ROWS)
    call = ["-c", str(config_file), "verify", "-p", "lake", "--json"]
    assert run(call) == 0
    table = place(captured, "t")
    spark.sql(f"DELETE FROM {table} WHERE id = 17")
    spark.sql(f"UPDATE {table} SET secret = NULL WHERE id = 20")
    spark.sql(
        f"INSERT INTO {table} SELECT 777, secret, _pgtide_lsn, _pgtide_seq FROM {table}"
        " WHERE id = 1"
    )
    capsys.readouterr()
    assert run([*call, "--repair"]) == 0, capsys.readouterr()
    (pipeline,) = json.loads(capsys.readouterr().out)["pipelines"]
    assert pipeline["repaired"] == ["public.t"]
    assert pipeline["tables"][0]["rows"] == 500
    (made,) = RefreshStore(Storage(captured.config.log.path)).requests()
    assert (sorted(made.keys or ()), made.replace) == ([("17",), ("20",), ("777",)], True)


def test_what_a_repair_asks_for() -> None:
    few = TableReport("public.t", missing=3, key=("id",), keys=[("1",), ("2",), ("1",)])
    assert request(few).keys == (("1",), ("2",))
    assert (request(few).reason, request(few).replace) == ("repair", True)
    many = TableReport("public.t", keys=[("1",)] * (REPAIRED + 1))
    assert request(many).whole
    assert request(many).replace


def test_in_the_background(
    spark: SparkSession, captured: Captured, capsys: pytest.CaptureFixture[str]
) -> None:
    captured.run(ROWS)
    sink = {"type": "delta", "path": str(captured.directory / "lake")}
    pipeline = {"sink": sink, "interval": "100ms", "verify": {"interval": "1s", "rate": 10**6}}
    document = {**captured.settings, "pipelines": {"lake": pipeline}}
    config = Config.model_validate(document)
    file = captured.directory / "pgtide.yaml"
    file.write_text(json.dumps(document))
    command = command_line(Invocation(config_path=file), until_current=False)
    supervisor = Supervisor(config, ["lake"], command, lambda: spark)
    thread = threading.Thread(target=supervisor.run)
    results = VerifyFile(Storage(config.log.path), "lake")
    thread.start()
    try:
        wait_until(lambda: (results.load() or {}).get("rows") == 500, "a pass", 120)
        found = results.load()
        assert found is not None
        assert (found["differing"], found["error"], found["tables"]) == ([], None, 1)
        spark.sql(f"DELETE FROM {place(captured, 't')} WHERE id = 17")
        wait_until(lambda: (results.load() or {})["differing"], "it to be found", 120)
        capsys.readouterr()
        assert run(["-c", str(file), "status"]) == 1
        assert "public.t differs from the source, 1 missing" in capsys.readouterr().out
    finally:
        supervisor.stop()
        thread.join(90)
    assert supervisor.members["lake"].status == "stopped"
    found = results.load()
    assert found is not None
    assert found["differing"][0]["keys"] == [["17"]]
