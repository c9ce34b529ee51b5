"""``pgtide verify`` of another database, as people call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgtide.cli import run_command as run
from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from tests.fixtures.spark import Staying
from tests.verify.replica import Replica, no_spark
from tests.verify.test_verify_command import ROWS


@pytest.fixture
def config_file(replica: Replica) -> Path:
    sink = {"type": "postgres", "url": replica.database.url}
    document = {**replica.captured.settings, "pipelines": {"copy": {"sink": sink}}}
    file = replica.captured.directory / "pgtide.yaml"
    file.write_text(json.dumps(document))
    return file


def test_the_command(
    spark: SparkSession,
    replica: Replica,
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody runs capture or pipeline: both are brought up to date first, for which Spark starts.

    From then on it does not.
    """
    replica.captured.run(ROWS)
    call = ["-c", str(config_file), "verify"]
    monkeypatch.setattr("pgtide.cli.verify.spark_session", lambda config: Staying(spark))
    assert run(call) == 0
    assert "✓ copy: public.t is equal: 500 rows" in capsys.readouterr().out
    monkeypatch.setattr("pgtide.cli.verify.spark_session", lambda config: no_spark())
    assert run(call) == 0
    replica.plant("UPDATE t SET secret = 'other' WHERE id = 250")
    capsys.readouterr()
    assert run(call) == 1
    shown = capsys.readouterr()
    assert "    different: id = 250 in secret\n" in shown.out
    assert "hidden" not in shown.out + shown.err
    assert run([*call, "--sample", "1", "--seed", "x", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (pipeline,) = document["pipelines"]
    assert (document["equal"], pipeline["seed"]) == (False, "x")
    assert pipeline["tables"][0]["differences"] == [
        {"kind": "different", "key": ["250"], "columns": ["secret"]}
    ]
    replica.plant("DROP TABLE t")
    assert run(call) == 1
    out = capsys.readouterr().out
    assert "public.t differs: the target has no table public.t, 500 missing" in out


def test_repairing_the_differing_rows(
    spark: SparkSession,
    replica: Replica,
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pgtide.cli.verify.spark_session", lambda config: Staying(spark))
    replica.captured.run(ROWS)
    call = ["-c", str(config_file), "verify", "--json"]
    assert run(call) == 0
    replica.plant(
        "DELETE FROM t WHERE id = 17",
        "UPDATE t SET secret = NULL WHERE id = 20",
        "INSERT INTO t SELECT 777, secret FROM t WHERE id = 1",
    )
    capsys.readouterr()
    assert run([*call, "--repair"]) == 0, capsys.readouterr()
    (pipeline,) = json.loads(capsys.readouterr().out)["pipelines"]
    assert pipeline["repaired"] == ["public.t"]
    assert pipeline["tables"][0]["rows"] == 500
    (made,) = RefreshStore(Storage(replica.captured.config.log.path)).requests()
    assert (sorted(made.keys or ()), made.replace) == ([("17",), ("20",), ("777",)], True)
