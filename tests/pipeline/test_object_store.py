"""Log and lake on an S3-compatible store: mirrors and history are what the source says.

Spark learns of S3 when its Java starts, so the pipelines run in a process of their own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import pytest

from pgtide.errors import EnvironmentMissing
from pgtide.log.files import walk
from pgtide.log.storage import Storage
from pgtide.spark.jars import s3_jars
from tests.fixtures.capture import ROOT, Captured, MakeCaptured
from tests.fixtures.s3 import ObjectStore

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(1500)]

PROGRAM = """
import json
import os
import signal
import sys
from pgtide.cli.run import spark_session
from pgtide.config import Config
from pgtide.pipeline.replaying import replay
from pgtide.pipeline.running import PipelineRun
from pgtide.log.storage import _ObjectStore
from pgtide.spark.paths import spark_path

copies_left = int(sys.argv[2])
copy_file = _ObjectStore.copy_file

def last_copies(store, *paths):
    global copies_left
    copies_left -= 1
    if copies_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    copy_file(store, *paths)

_ObjectStore.copy_file = last_copies
config = Config.model_validate(json.loads(sys.argv[1]))
spark = spark_session(config)
spark.conf.set("spark.sql.session.timeZone", "UTC")
for line in sys.stdin:
    task, name, *rest = json.loads(line)
    answer = None
    if task == "run":
        PipelineRun(spark, config, name).run(until_current=True)
    elif task == "replay":
        replay(spark, config, name)
    else:
        path = f"{config.pipelines[name].sink.path}/public/{rest[0]}"
        rows = spark.read.format("delta").load(spark_path(path)).selectExpr(*rest[1:])
        answer = [[str(value) for value in row] for row in rows.collect()]
    print("\\n" + json.dumps(answer), flush=True)
spark.stop()
"""


@dataclass(frozen=True)
class Pipelines:
    """Pipelines in a process of their own, which does one thing after the other."""

    captured: Captured
    process: subprocess.Popen[str]

    def deliver(self, *names: str) -> None:
        """Capture what there is and bring it into the lakes."""
        self.captured.capture()
        for name in names:
            self.ask("run", name)

    def ask(self, *task: str) -> Any:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps(task), file=stdin, flush=True)
        line = next((each for each in stdout if each.strip()), "")
        assert line, "the process has ended"
        return json.loads(line)

    def rows(self, name: str, table: str, *columns: str) -> list[list[str]]:
        """Columns of a table of a lake, as texts, in order."""
        return sorted(self.ask("rows", name, table, *columns))

    def source(self, query: str) -> list[list[str]]:
        return sorted([str(value) for value in row] for row in self.captured.execute(query))


Lakes = dict[str, dict[str, Any]]


def lakes(store: ObjectStore, **modes: str) -> Lakes:
    """Sinks by the names of pipelines, one for each mode, each with a lake of its own."""
    return {
        name: {"type": "delta", "mode": mode, "path": store.path(), "storage": store.options}
        for name, mode in modes.items()
    }


@contextmanager
def pipelines(captured: Captured, sinks: Lakes, dies_at_copy: int = 0) -> Iterator[Pipelines]:
    """One pipeline for each sink, by its name."""
    settings = {
        **captured.settings,
        "pipelines": {name: {"sink": sink} for name, sink in sinks.items()},
        "spark": {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "2"}},
    }
    with (captured.directory / "pipelines.log").open("w+") as said:
        command = [sys.executable, "-c", PROGRAM, json.dumps(settings), str(dies_at_copy)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=said, text=True
        )
        try:
            with process:
                yield Pipelines(captured, process)
        except BaseException:
            process.kill()
            sys.stderr.write(_told(said))
            raise
        assert process.returncode == (-signal.SIGKILL if dies_at_copy else 0), _told(said)


def _told(said: IO[str]) -> str:
    said.seek(0)
    return said.read()


@pytest.fixture
def captured(make_captured: MakeCaptured, object_store: ObjectStore) -> Captured:
    try:
        s3_jars()
    except EnvironmentMissing as error:
        pytest.skip(f"{error.message}: run make s3-server")
    return make_captured(log={"path": object_store.path(), "storage": object_store.options})


ROUNDS = (
    """CREATE TABLE t (id int PRIMARY KEY, v text, at timestamptz);
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO t SELECT n, 'v' || n, '2026-01-01'::timestamptz FROM generate_series(1, 100) n;
INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, 'y');
""",
    """UPDATE t SET v = 'changed' WHERE id % 3 = 0;
DELETE FROM t WHERE id % 10 = 0;
UPDATE t SET id = id + 1000 WHERE id % 10 = 1;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);
""",
    """ALTER TABLE t ADD COLUMN more int DEFAULT 7;
INSERT INTO t VALUES (200, 'new', NULL, 8), (201, NULL, '2026-02-01', NULL);
UPDATE t SET more = id WHERE id < 5;
ALTER TABLE bag ADD COLUMN c text;
UPDATE bag SET c = 'z';
""",
    """ALTER TABLE t RENAME COLUMN v TO words;
ALTER TABLE t DROP COLUMN at;
DELETE FROM t WHERE id > 150 AND id < 1000;
INSERT INTO t VALUES (1, 'again', 1);
""",
    """TRUNCATE bag;
INSERT INTO bag VALUES (3, 'after', NULL);
UPDATE t SET words = words || '!' WHERE id < 50;
""",
)


def test_mirror_and_history(captured: Captured, object_store: ObjectStore) -> None:
    sinks = lakes(object_store, lake="mirror", past="history")
    with pipelines(captured, sinks) as running:
        for script in ROUNDS:
            captured.run(script)
            running.deliver("lake", "past")
            ((columns,),) = captured.execute(
                "SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute"
                " WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped"
            )
            names = ", ".join(c for c in columns if c != "at")
            told = running.rows("lake", "t", *names.split(", "))
            assert told == running.source(f"SELECT {names} FROM t")
            assert running.rows("lake", "bag", "a", "b") == running.source("SELECT a, b FROM bag")
        expected = [
            [event.op, str((event.after or event.before or {})["id"])]
            for event in captured.events("insert", "update", "delete")
            if event.table == "t"
        ]
        assert running.rows("past", "t", "_pgtide_op", "id") == sorted(expected)


def test_a_rename_that_is_killed(captured: Captured, object_store: ObjectStore) -> None:
    """Objects are copied one by one: half of them are no table. Names are free again after that."""
    sinks = lakes(object_store, past="history")
    sinks["past"]["dropped_tables"] = "drop"
    captured.run("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    with pipelines(captured, sinks) as running:
        running.deliver("past")
        captured.run("INSERT INTO t VALUES (2, 'b')")
        running.deliver("past")
    captured.run("ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (3, 'c')")
    ended = pytest.raises(AssertionError, match="the process has ended")
    with pipelines(captured, sinks, dies_at_copy=3) as running, ended:
        running.deliver("past")
    with pipelines(captured, sinks) as running:
        running.deliver("past")
        assert running.rows("past", "u", "id") == [["1"], ["2"], ["3"]]
        new = "CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES"
        captured.run(f"ALTER TABLE u RENAME TO w; {new} (4)")
        running.deliver("past")
        assert running.rows("past", "u", "id") == [["4"]]
        captured.run(f"DROP TABLE u; {new} (5)")
        running.deliver("past")
        assert running.rows("past", "u", "id") == [["5"]]
        running.ask("replay", "past")
        assert running.rows("past", "u", "id") == [["5"]]
        assert running.rows("past", "w", "id") == [["1"], ["2"], ["3"]]
    lake = Storage(sinks["past"]["path"], object_store.options)
    assert not list(walk(lake, "public/t"))
