"""``pgtide run`` as the demo starts it: a process of its own, with its capture and its Java.

Run and Java are a process group; capture has one of its own and is named by its file in the
log. All of them write to one pipe, so its end says that none is left. What Spark leaves lying
about goes into the demo's scratch directory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO

from pgtide.capture.progress import ENDED, FILE
from pgtide.demo.live import Screen
from pgtide.errors import PgtideError
from pgtide.log.reader import Log
from pgtide.log.storage import Storage
from pgtide.pipeline.lag import Lag, lag_of
from pgtide.pipeline.state import State, now
from pgtide.pipeline.state_file import StateFile

PIPELINES = ("lake", "audit")
PATIENCE_S = 180.0  # for anything that has to happen at last, with Spark on a busy machine
POLL_S = 0.02
OUTPUT_TAIL = 20  # lines


class Running:
    """The process, started and killed by the shop's thread, ended by the other."""

    def __init__(
        self, screen: Screen, home: Path, scratch: Path, interrupted: threading.Event
    ) -> None:
        self._screen = screen
        self._interrupted = interrupted
        self._config = home / "pgtide.yaml"
        self._log = home / "log"
        self._scratch = scratch
        self._lines: deque[str] = deque(maxlen=OUTPUT_TAIL)
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread()
        self._began = 0.0
        self._lock = threading.Lock()  # or an interrupted demo could leave a process behind
        self._over = False

    # -- its life ---------------------------------------------------------------------

    def start(self) -> None:
        """Start it; returns when changes are captured. Spark takes longer."""
        with self._lock:
            if self._over:
                return
            self._began = time.time()
            process = self._process = subprocess.Popen(
                command("run", self._config),
                cwd=self._scratch,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._reader = threading.Thread(target=self._read, args=(process.stdout,))
            self._reader.start()
        self._screen.say(f"$ pgtide run           # process {process.pid}", "bold")
        while self._capture_pid() is None and not self._over:
            self.require_life()
            if time.time() - self._began > PATIENCE_S:
                raise PgtideError("pgtide run captures nothing", detail=self.said())
            time.sleep(POLL_S)

    def kill(self) -> int:
        """kill -9 for all of it; which process it was."""
        with self._lock:
            assert self._process is not None
            self._kill(self._process)
            number, self._process = self._process.pid, None
        return number

    def stop(self) -> None:
        """SIGTERM, and the time that it wants."""
        process = self._process
        assert process is not None
        process.terminate()
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise PgtideError("pgtide run did not stop", detail=self.said()) from None
        self.end()
        if code:
            raise PgtideError(f"pgtide run ended with {code}", detail=self.said())

    def end(self) -> None:
        """Nothing of it is left, and nothing is started any more."""
        with self._lock:
            self._over = True
            if self._process is not None:
                self._kill(self._process)
                self._process = None

    def _kill(self, process: subprocess.Popen[str]) -> None:
        capture = self._capture_pid() if process.poll() is None else None
        with suppress(ProcessLookupError, PermissionError):  # the latter: only zombies are left
            os.killpg(process.pid, signal.SIGKILL)  # of a run that has ended, its Java
        if capture is not None:
            with suppress(ProcessLookupError):
                os.kill(capture, signal.SIGKILL)
        process.wait()
        # A capture that had no file yet finds its parent gone, and ends.
        self._reader.join(PATIENCE_S)

    def _capture_pid(self) -> int | None:
        """The capture of this run, None before it has begun."""
        file = self._log / FILE
        if not file.exists() or file.stat().st_mtime < self._began:
            return None
        fields = json.loads(file.read_text())
        return None if fields["gear"] in ENDED else int(fields["pid"])

    def _read(self, output: IO[str]) -> None:
        with output:
            self._lines.extend(output)

    def _environment(self) -> dict[str, str]:
        temporary = self._scratch / "tmp"
        temporary.mkdir(exist_ok=True)
        # A JVM that is killed does not remove its temporary files; they go with the scratch.
        # It lives for half a minute: code that is compiled well would come too late. The room
        # for code is what it would be otherwise.
        java = f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData"
        java += " -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
        conf = {"spark.local.dir": str(temporary), "spark.driver.extraJavaOptions": java}
        return {**os.environ, "TMPDIR": str(temporary), "PGTIDE_SPARK__CONF": json.dumps(conf)}

    # -- how it is ----------------------------------------------------------------------

    def require_life(self) -> None:
        """Raise if it has ended by itself, a pipeline has failed for good, or nobody waits."""
        if self._interrupted.is_set():
            raise KeyboardInterrupt
        process = self._process
        if process is not None and process.poll() is not None:
            raise PgtideError(
                f"pgtide run ended by itself, with {process.returncode}", detail=self.said()
            )
        for name, file in self._files().items():
            error = file.error()
            if error is not None and not error["transient"]:
                raise PgtideError(
                    f"pipeline {name} failed: {error['message']}",
                    detail=error["detail"],
                    hint=error["hint"],
                )

    def said(self) -> str:
        """The end of its output."""
        return "".join(self._lines).strip()

    def states(self) -> dict[str, State]:
        """How far the pipelines have come; those that have begun."""
        found = {name: file.load() for name, file in self._files().items()}
        return {name: state for name, state in found.items() if state is not None}

    def _files(self) -> dict[str, StateFile]:
        storage = Storage(str(self._log))
        return {name: StateFile(storage, name) for name in PIPELINES}

    def batches(self) -> int:
        """Batches that the pipelines have applied together."""
        return sum(state.batches for state in self.states().values())

    def wait_until_applied(self) -> dict[str, State]:
        """Wait until the pipelines have applied all that the log holds; what they did."""
        snapshot = Log(self._log).snapshot()
        deadline = time.monotonic() + PATIENCE_S
        done: set[str] = set()
        while True:
            states = self.states()
            for name, state in states.items():
                if name not in done and lag_of(state, snapshot, now()) == Lag():
                    self._screen.say(f"✓ {name} has applied everything", "green")
                    done.add(name)
            if done == set(PIPELINES):
                return states
            self.require_life()
            if time.monotonic() > deadline:
                raise PgtideError("the pipelines did not catch up", detail=self.said())
            time.sleep(POLL_S)


def command(name: str, config: Path) -> list[str]:
    """The command line of ``pgtide NAME`` with a configuration."""
    start = "from pgtide.cli import main; main()"
    return [sys.executable, "-c", start, "-c", str(config), name]
