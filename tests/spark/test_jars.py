"""Fetching the jar files of Delta."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtide.errors import EnvironmentMissing
from pgtide.spark.jars import delta_jars, delta_package

NOTHING = """<ivysettings>
  <settings defaultResolver="nothing"/>
  <resolvers>
    <filesystem name="nothing"><artifact pattern="{directory}/[artifact].[ext]"/></filesystem>
  </resolvers>
</ivysettings>
"""


def test_only_jars_that_spark_lacks_are_kept() -> None:
    names = [jar.name for jar in delta_jars()]
    assert any(name.startswith("delta-spark_4.1_2.13-") for name in names)
    assert not any(name.startswith(("hadoop-", "parquet-", "log4j-")) for name in names)


def test_without_a_repository_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ivy.xml").write_text(NOTHING.format(directory=tmp_path / "empty"))
    with pytest.raises(EnvironmentMissing, match="could not be fetched") as caught:
        delta_jars({"spark.jars.ivySettings": str(tmp_path / "ivy.xml")})
    assert delta_package() in caught.value.message
    assert "python -m pgtide.spark.jars" in caught.value.hint
    assert list((tmp_path / "pgtide" / "jars").iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(EnvironmentMissing, match="cannot be written") as caught:
        delta_jars()
    assert "XDG_CACHE_HOME" in caught.value.hint
