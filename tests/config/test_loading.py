from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from pgtide.config import Config, load
from pgtide.errors import ConfigError

SECRET = "hunter2"

MINIMAL = """
source: {url: postgresql://app@db/shop}
log: {path: ./tide/log}
"""

FULL = """
source:
  url: postgresql://app:${DB_PASSWORD}@db/shop
  admin_url: postgresql://postgres@db/shop
  slot: shop
  tables: ["public.*", "!public.audit_*"]
  snapshot: never
  ddl: false
  keyless: full
  origin: none
log:
  path: s3://bucket/log
  flush_interval: 50ms
  retention: 1d
  buffer: 1MB
  storage: {AWS_REGION: eu-1, AWS_ALLOW_HTTP: true, AWS_SECRET_ACCESS_KEY: "${DB_PASSWORD}"}
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 8}}
pipelines:
  lake:
    sink: {type: delta, path: ./tide/lake, storage: {AWS_SECRET_ACCESS_KEY: "${DB_PASSWORD}"}}
    tables: ["public.*"]
    rules: []
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pgtide.yaml"


def loaded(file: Path, text: str, **env: str) -> Config:
    file.write_text(text, encoding="utf-8")
    return load(file, env)


def refused(file: Path, text: str, **env: str) -> ConfigError:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file, env)
    error = caught.value
    assert error.exit_code == 2
    # No way of printing it, the chain of causes included, shows the secret.
    assert SECRET not in "".join(traceback.format_exception(error, chain=True))
    assert SECRET not in error.message + error.detail + error.hint
    return error


def test_defaults(file: Path) -> None:
    config = loaded(file, MINIMAL)
    assert config.source.slot == "pgtide"
    assert config.source.tables == ["*.*"]
    assert (config.source.snapshot, config.source.keyless) == ("initial", "refuse")
    assert (config.source.ddl, config.source.origin) == (True, "any")
    assert config.source.admin == config.source.url
    assert (config.log.flush_interval, config.log.retention) == (0.5, 604800.0)
    assert config.log.buffer == 16 * 1024 * 1024
    assert (config.spark.master, config.pipelines) == ("local[*]", {})


def test_every_setting(file: Path) -> None:
    config = loaded(file, FULL, DB_PASSWORD=SECRET)
    assert config.source.url.reveal() == f"postgresql://app:{SECRET}@db/shop"
    assert config.source.admin.reveal() == "postgresql://postgres@db/shop"
    assert (config.log.flush_interval, config.log.buffer) == (0.05, 1 << 20)
    assert config.log.path == "s3://bucket/log"
    assert config.log.storage["AWS_ALLOW_HTTP"] == "true"
    assert config.spark.conf == {"spark.sql.shuffle.partitions": "8"}
    assert config.pipelines["lake"].sink.type == "delta"


def test_secrets_are_not_printed(file: Path) -> None:
    config = loaded(file, FULL, DB_PASSWORD=SECRET)
    for part in (config, config.source, config.log, config.pipelines["lake"], config.pipelines):
        assert SECRET not in f"{part!r} {part}"


def test_log_path_is_relative_to_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loaded(file, MINIMAL).log.path == str(tmp_path / "tide" / "log")
    monkeypatch.chdir(tmp_path)
    assert load(Path("pgtide.yaml"), {}).log.path == str(tmp_path / "tide" / "log")
    absolute = loaded(file, MINIMAL.replace("./tide", "/srv/tide"))
    assert absolute.log.path == "/srv/tide/log"


def test_so_is_a_sink_path(file: Path, tmp_path: Path) -> None:
    lake = loaded(file, FULL, DB_PASSWORD=SECRET).pipelines["lake"]
    assert lake.sink.model_dump()["path"] == str(tmp_path / "tide" / "lake")
    stored = loaded(file, FULL.replace("./tide/lake", "s3://bucket/lake"), DB_PASSWORD=SECRET)
    assert stored.pipelines["lake"].sink.model_dump()["path"] == "s3://bucket/lake"


def test_config_is_frozen(file: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        loaded(file, MINIMAL).log.path = "elsewhere"


@pytest.mark.parametrize(
    ("text", "env", "url"),
    [
        ("postgresql://${HOST}/shop", {"HOST": "db"}, "postgresql://db/shop"),
        ("postgresql://${HOST:-db}/shop", {}, "postgresql://db/shop"),
        ("postgresql://${HOST:-db}/shop", {"HOST": ""}, "postgresql://db/shop"),
        ("postgresql://${HOST}:${PORT}/", {"HOST": "db", "PORT": "1"}, "postgresql://db:1/"),
        ("host=db password=a$${b}c$", {}, "host=db password=a${b}c$"),
        ("${URL}", {"URL": "host=db password='#: {[%'"}, "host=db password='#: {[%'"),
        ("${URL}", {"URL": "host=db user=${OTHER}"}, "host=db user=${OTHER}"),
    ],
)
def test_expansion(file: Path, text: str, env: dict[str, str], url: str) -> None:
    config = loaded(file, f"source: {{url: '{text}'}}\nlog: {{path: /log}}", **env)
    assert config.source.url.reveal() == url


def test_variables_override_the_file(file: Path) -> None:
    config = loaded(
        file,
        FULL,
        DB_PASSWORD=SECRET,
        PGTIDE_SOURCE__URL="host=other",
        PGTIDE_SOURCE__TABLES='["sales.*"]',
        PGTIDE_SOURCE__DDL="true",
        PGTIDE_LOG__FLUSH_INTERVAL="2s",
        PGTIDE_LOG__STORAGE__AWS_REGION="us-1",
        PGTIDE_PIPELINES__LAKE__SINK__PATH="/lake",
        PGTIDE_TEST_POSTGRES="not a setting",
    )
    assert config.source.url.reveal() == "host=other"
    assert config.source.tables == ["sales.*"]
    assert config.source.ddl is True
    assert config.log.flush_interval == 2.0
    assert config.log.storage["AWS_REGION"] == "us-1"
    assert config.pipelines["lake"].sink.model_dump()["path"] == "/lake"


def test_environment_alone_is_enough() -> None:
    config = load(None, {"PGTIDE_SOURCE__URL": "host=db", "PGTIDE_LOG__PATH": "/log"})
    assert (str(config.source.url), config.log.path) == ("host=db", "/log")


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("slot:", "slots:", "source.slots: unknown setting", "did you mean source.slot?"),
        ("tables: [", "tabels: [", "source.tabels: unknown setting", "mean source.tables?"),
        ("log:", "logs:", "2 settings", ""),
        ("slot: shop", "flush_interval: 1s", "source.flush_interval: unknown", "log.flush_int"),
        ("  slot: shop", "  zzz: 1", "source.zzz: unknown setting", ""),
        ("rules:", "rule:", "pipelines.lake.rule: unknown", "mean pipelines.lake.rules?"),
        ("spark:", "spork:", "spork: unknown setting", "did you mean spark?"),
        ("50ms", "5 parsecs", "log.flush_interval: '5 parsecs' is not a duration", "500ms"),
        ("50ms", "50", "log.flush_interval: 50 is not a duration", "500ms"),
        ("50ms", "1ms", "log.flush_interval: must be at least 10ms", ""),
        ("1d", "soon", "log.retention: 'soon' is not a duration", "500ms"),
        ("1MB", "1", "log.buffer: 1 is not a size", "16MB"),
        ("1MB", "1B", "log.buffer: must be at least 64kB", ""),
        ("never", "maybe", "source.snapshot: must be 'initial', 'incremental' or 'never'", ""),
        ("ddl: false", "ddl: perhaps", "source.ddl: expected true or false", ""),
        ("slot: shop", "slot: My-Slot", "source.slot: must match", ""),
        ("slot: shop", "slot: [a]", "source.slot: expected text", ""),
        ('"!public.audit_*"', '"a.b.c"', "source.tables: 'a.b.c' is not a table", "schema.table"),
        ('"!public.audit_*"', "7", "source.tables[1]: expected text", ""),
        ('["public.*"]', "public.*", "pipelines.lake.tables: expected a list", ""),
        ("{AWS_REGION: eu-1,", "{AWS_REGION: [eu-1],", "log.storage.AWS_REGION: expected text", ""),
        ("s3://bucket/log", "null", "log.path: expected text", ""),
        ("@db/shop\n  admin", "@db:x/shop\n  admin", "source.url: not a connection", "postgresql"),
        ("${DB_PASSWORD}@", "${NOT_SET}@", "source.url: environment variable NOT_SET", "export"),
        ("${DB_PASSWORD}@", "${@", "source.url: a ${ that names no", "$${"),
        ('"!public.audit_*"', '"${GONE}"', "source.tables[1]: environment variable GONE", "export"),
    ],
)
def test_wrong_settings(file: Path, old: str, new: str, message: str, hint: str) -> None:
    assert old in FULL
    error = refused(file, FULL.replace(old, new, 1), DB_PASSWORD=SECRET)
    assert message in error.message
    assert hint in error.hint


def test_all_wrong_settings_are_reported_at_once(file: Path) -> None:
    error = refused(file, f"source: {{ulr: {SECRET}, ddl: 7x}}\nlog: {{path: /log, bufer: 1MB}}")
    assert "settings in" in error.message
    assert "source.ulr: unknown setting (did you mean source.url?)" in error.detail
    assert "source.url: required, but not set" in error.detail
    assert "source.ddl: expected true or false" in error.detail
    assert "log.bufer: unknown setting (did you mean log.buffer?)" in error.detail


def test_misspelt_variable(file: Path) -> None:
    error = refused(file, MINIMAL, PGTIDE_SOURCE__SLOTT="x")
    assert "source.slott: unknown setting" in error.message
    error = refused(file, MINIMAL, PGTIDE_SOURCE__SLOT__X="x", PGTIDE_SOURCE__SLOT="x")
    assert "source.slot is a single value" in error.message


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (f"source: {{url: {SECRET}", "Line 1"),
        (f"source:\n  url: *{SECRET}", "Line 2"),
        (f"source:\n  url: !{SECRET} x", "Line 2"),
        (f"source:\n\turl: {SECRET}", "Line 2"),
        (f"source:\n  url: '{SECRET}", "Line 2"),
        ("log: {path: a}\nlog: {path: b}", "Line 2, column 1: key log appears twice."),
    ],
)
def test_bad_yaml_names_the_place(file: Path, text: str, detail: str) -> None:
    error = refused(file, text)
    assert error.message == f"{file} is not valid YAML"
    assert detail in error.detail


@pytest.mark.parametrize("text", ["- source", "just text", "7"])
def test_yaml_of_another_kind(file: Path, text: str) -> None:
    assert "not a list of settings" in refused(file, text).message


def test_unreadable_files(file: Path) -> None:
    with pytest.raises(ConfigError, match="there is no configuration file") as caught:
        load(file, {})
    assert "-c FILE" in caught.value.hint
    file.write_bytes(b"source: \xff")
    with pytest.raises(ConfigError, match="cannot read"):
        load(file, {})
    with pytest.raises(ConfigError, match="cannot read"):
        load(file.parent, {})


@pytest.mark.parametrize("path", ['""', '" "'])
def test_an_empty_log_path_is_refused(file: Path, path: str) -> None:
    error = refused(file, MINIMAL.replace("./tide/log", path))
    assert "log.path" in error.message + error.detail


def test_characters_that_json_escapes_in_two_halves(file: Path) -> None:
    found = loaded(file, MINIMAL + 'spark: {conf: {"spark.app.name": "\\ud83d\\ude00 tide"}}')
    assert found.spark.conf["spark.app.name"] == "\U0001f600 tide"
    error = refused(file, MINIMAL + 'spark: {conf: {"spark.app.name": "\\ud83d"}}')
    assert error.message == f"{file} is not valid YAML"
    assert error.detail == "Line 4, column 34: an escape is half of a character."
