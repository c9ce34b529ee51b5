"""Settings of the sinks: one section per type, told apart by ``type``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pgtide.config.section import Section, as_problem, reporting
from pgtide.config.units import parse_duration, parse_size
from pgtide.config.urls import Url
from pgtide.errors import ConfigError


def location(value: str) -> str:
    """A path or address that is not empty."""
    if not value.strip():
        raise ConfigError("must not be empty", hint="name a directory or an object store URL")
    return value


def _plain_name(value: str) -> str:
    """A name that needs no quotes in Spark."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ConfigError(
            f"{value!r} is not a plain name", hint="use letters, digits and _, no digit first"
        )
    return value


def _some_time(value: object) -> float:
    seconds = parse_duration(value)
    if not seconds:
        raise ConfigError("must be longer than nothing", hint="leave it out to keep all")
    return seconds


def _option_texts(value: Any) -> Any:
    """Let options be written as YAML numbers and booleans; their readers want text."""
    if not isinstance(value, dict):
        return value
    plain = {True: "true", False: "false"}
    return {
        str(name): plain[option] if isinstance(option, bool) else _scalar_text(option)
        for name, option in value.items()
    }


def _scalar_text(option: Any) -> Any:
    return str(option) if isinstance(option, int | float) else option


Location = Annotated[str, AfterValidator(reporting(location))]
Options = Annotated[dict[str, str], BeforeValidator(_option_texts)]
Seconds = Annotated[float, BeforeValidator(reporting(parse_duration))]
Bytes = Annotated[int, BeforeValidator(reporting(parse_size))]


def _no_effect(section: Section, names: tuple[str, ...], choice: str, wanted: str) -> None:
    """Refuse settings that only ``choice: wanted`` heeds, unless they say what is so anyway."""
    chosen = getattr(section, choice)
    for name in names if chosen != wanted else ():
        if getattr(section, name) != type(section).model_fields[name].default:
            problem = ConfigError(
                f"{name} has no effect with {choice}: {chosen}",
                hint=f"remove {name}, or set {choice} to {wanted}",
            )
            raise as_problem(problem)


class PivotSettings(Section):
    """What a row per changed field is made of."""

    key: list[str] = Field(default=[])
    """Columns that tell whose change it is; the table's key when not set."""
    columns: list[str] = Field(default=[])
    """Columns whose changes are told; when not set all but the key (which is told when it
    changes) and the two below."""
    fields: Literal["changed", "all"] = "changed"
    """Of an update, which of those columns get a row."""
    created: str | None = None
    """Column that has `datetime_created`; the time of the commit when not set."""
    updated: str | None = None
    """Column that has `datetime_updated`; the time of the commit when not set."""


class DeltaSettings(Section):
    """Delta tables, one per table of the source."""

    type: Literal["delta"]
    path: Location
    """Where the tables are, `<path>/<schema>/<table>`: a directory, relative to the
    configuration file, or an object store URL."""
    mode: Literal["mirror", "history", "scd2", "pivot"] = "mirror"
    """`mirror` equals the source; `history` has every change; `scd2` every version of a row;
    `pivot` a row per changed field."""
    committed_at: bool = False
    """Give mirrors `_pgtide_committed_at`, when the row was last changed at the source."""
    soft_delete: bool = False
    """Keep deleted rows in mirrors, marked in `_pgtide_deleted`."""
    dropped_columns: Literal["drop", "keep"] = "drop"
    """What happens to a column that was dropped at the source."""
    dropped_tables: Literal["keep", "drop"] = "keep"
    """What happens to a table that was dropped at the source."""
    views: Annotated[str, AfterValidator(reporting(_plain_name))] | None = None
    """Database of Spark's catalog for views `<schema>_<table>` of mirrors, without pgtide's own
    columns and without rows that were deleted softly."""
    pivot: PivotSettings = PivotSettings()
    """Of mode `pivot`: the columns it is about."""
    storage: Options = Field(default={}, repr=False)
    """Options of the object store, as delta-rs names them."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _no_effect(self, ("committed_at", "soft_delete", "views"), "mode", "mirror")
        _no_effect(self, ("pivot",), "mode", "pivot")
        return self


class FileSettings(Section):
    """Files with events, one per batch and table."""

    type: Literal["file"]
    path: Location
    """Where the files are, `<path>/<schema>/<table>/…`: a directory, relative to the
    configuration file, or an object store URL."""
    format: Literal["jsonl", "csv", "parquet"] = "jsonl"
    """The kind of file."""
    envelope: Literal["native", "debezium", "pgstream", "pg_flo", "pivot"] = "native"
    """The form of an event; `pivot` is a row per changed field, for `csv` and `parquet`."""
    pivot: PivotSettings = PivotSettings()
    """Of envelope `pivot`: the columns it is about."""
    rotate: Annotated[Bytes, Field(gt=0)] = 128 << 20
    """A file that would grow larger is split."""
    keep: Annotated[float, BeforeValidator(reporting(_some_time))] | None = None
    """Delete files that are older, as in `30d`."""
    storage: Options = Field(default={}, repr=False)
    """Options of the object store, as delta-rs names them."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        wanted = {"native": ["jsonl", "csv", "parquet"], "pivot": ["csv", "parquet"]}
        formats = wanted.get(self.envelope, ["jsonl"])
        if self.format not in formats:
            problem = ConfigError(
                f"envelope {self.envelope} cannot be written as {self.format}",
                hint=f"set format to {' or '.join(formats)}, or choose another envelope",
            )
            raise as_problem(problem)
        _no_effect(self, ("pivot",), "envelope", "pivot")
        return self


class StdoutSettings(Section):
    """Events on standard output, one per line."""

    type: Literal["stdout"]
    envelope: Literal["native", "debezium", "pgstream", "pg_flo"] = "native"
    """The form of an event."""


class PostgresSettings(Section):
    """Tables of another Postgres database: equal to those of the source, or all their changes."""

    type: Literal["postgres"]
    url: Url
    """libpq URL or `key=value` string of the role that writes, and owns what DDL is to change."""
    mode: Literal["mirror", "history"] = "mirror"
    """`mirror` equals the source; `history` has every change, in tables that pgtide makes. The
    settings below are of a mirror."""
    consistency: Literal["transaction", "table"] = "transaction"
    """`transaction`: all tables change together, so that the target is always as the source was
    between two transactions. `table`: tables are written side by side, each at its own pace."""
    on_conflict: Literal["error", "apply", "keep"] = "error"
    """When the target has a row that should not be there, or lacks one: stop; make it as the
    source has it; leave it as it is. The last two are listed in `pgtide.conflicts`."""
    keyless: Literal["match", "append"] = "match"
    """Updates and deletes in tables without a key: change one row that is equal in all columns;
    or take inserts only, and stop at anything else."""
    ddl: list[str] = Field(default=["*"])
    """Kinds of objects whose DDL is replayed, as in `["*", "!index"]`; an empty list: none."""
    replication_role: Literal["origin", "replica"] = "origin"
    """`replica` switches triggers and foreign keys off while changes are written
    (`session_replication_role`); the role needs the right to set it."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = ("consistency", "on_conflict", "keyless", "ddl", "replication_role")
        _no_effect(self, names, "mode", "mirror")
        return self


SinkSettings: TypeAlias = Annotated[
    DeltaSettings | FileSettings | StdoutSettings | PostgresSettings, Field(discriminator="type")
]
