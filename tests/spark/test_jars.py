"""Fetching the jar files of Delta."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgtide.errors import EnvironmentMissing
from pgtide.spark.jars import delta_jars, delta_package, s3_jars, s3_package
from pgtide.spark.paths import object_store_settings
from pgtide.spark.session import _settings

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


def test_s3_is_that_of_sparks_hadoop_and_only_fetched_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert re.fullmatch(r"org\.apache\.hadoop:hadoop-aws:3\.\d+\.\d+", s3_package())
    name = s3_package().split(":", 1)[1].replace(":", "-")
    delta_place = delta_jars()[0].parent.name
    for file in (f"jars/{name}/{name}.jar", f"jars/{delta_place}/delta.jar"):
        (tmp_path / "pgtide" / file).parent.mkdir(parents=True)
        (tmp_path / "pgtide" / file).touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stores = object_store_settings("s3://lake/a", {})
    given: dict[str, dict[str, str]] = {
        "": {},
        f"{name}.jar": stores,
        "mine/hadoop-aws.jar": {**stores, "spark.jars": "mine/hadoop-aws.jar"},
    }
    for jar, conf in given.items():
        jars = _settings(conf)["spark.jars"].split(",")
        assert [each.removeprefix(f"{tmp_path}/pgtide/jars/{name}/") for each in jars] == [
            *([jar] if jar.startswith("mine") else []),
            str(tmp_path / "pgtide" / "jars" / delta_place / "delta.jar"),
            *([jar] if jar.startswith("hadoop") else []),
        ]


@pytest.mark.parametrize("jars", [(), ("3.4.1", "3.4.2")])
def test_a_spark_whose_hadoop_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jars: tuple[str, ...]
) -> None:
    (tmp_path / "jars").mkdir()
    for version in jars:
        (tmp_path / "jars" / f"hadoop-client-api-{version}.jar").touch()
    monkeypatch.setattr("pgtide.spark.jars.spark_home", lambda: tmp_path)
    with pytest.raises(EnvironmentMissing, match="for S3") as caught:
        s3_jars()
    assert str(tmp_path / "jars") in caught.value.detail
    assert "hadoop-aws" in caught.value.hint


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
