"""The settings model. The docstring under each field is its line in the reference.

Models are frozen and refuse unknown keys. Whatever may hold a secret is either
a ConnectionString or left out of ``repr``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pgtide.config.connection_string import ConnectionString
from pgtide.config.patterns import TablePatterns
from pgtide.config.places import check_places
from pgtide.config.rules import Route, Rule
from pgtide.config.section import Section, as_problem, reporting
from pgtide.config.sinks import Bytes, Options, Seconds, SinkSettings, location
from pgtide.config.unbounded_numeric import checked_unbounded_numeric
from pgtide.config.units import parse_duration, parse_size, parse_window
from pgtide.config.urls import Url
from pgtide.errors import ConfigError

# It is part of names of files, of which `pipeline.<name>.parked` may have 100 characters.
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


def is_pipeline_name(text: str) -> bool:
    """Whether a pipeline may be called so."""
    return _PIPELINE_NAME.fullmatch(text) is not None


def _pipeline_name(value: Any) -> Any:
    if isinstance(value, str) and is_pipeline_name(value):
        return value
    hint = "use 1 to 80 ASCII letters, digits, _ and -"
    if not isinstance(value, str):
        hint = "put it in quotes: YAML takes it for something else than text"
    raise ConfigError(f"{value!r} cannot be the name of a pipeline", hint=hint)


def _patterns(value: list[str]) -> list[str]:
    TablePatterns(value)
    return value


def _at_least(text: str, parse: Callable[[Any], float]) -> AfterValidator:
    limit = parse(text)

    def check(value: float) -> float:
        if value < limit:
            raise ConfigError(f"must be at least {text}")
        return value

    return AfterValidator(reporting(check))


def _window(value: str) -> str:
    parse_window(value)
    return value


Tables = Annotated[list[str], AfterValidator(reporting(_patterns))]
PipelineName = Annotated[str, BeforeValidator(reporting(_pipeline_name))]
UnboundedNumeric = Annotated[str, BeforeValidator(reporting(checked_unbounded_numeric))]


class Source(Section):
    """The Postgres database that changes are captured from."""

    url: Url
    """libpq URL or `key=value` string of the role that captures."""
    admin_url: Url | None = None
    """The role that `init` and `destroy` connect as; `url` when not set."""
    slot: str = Field(default="pgtide", pattern=r"^[a-z0-9_]{1,63}$")
    """Name of the replication slot and of the publication."""
    tables: Tables = Field(default=["*.*"])
    """Patterns over `schema.table`; `!` excludes, the last match decides."""
    snapshot: Literal["initial", "incremental", "never"] = "initial"
    """How the rows that exist already get into the log."""
    ddl: bool = True
    """Capture DDL through event triggers."""
    keyless: Literal["refuse", "full", "insert"] = "refuse"
    """What `init` does with tables that have no usable replica identity."""
    origin: Literal["any", "none"] = "any"
    """`none` leaves out changes that were replicated into the source (Postgres 16+)."""

    @property
    def admin(self) -> ConnectionString:
        return self.admin_url or self.url


class Log(Section):
    """The change log."""

    path: Annotated[str, AfterValidator(reporting(location))]
    """Directory, relative to the configuration file, or an object store URL (`s3://…`)."""
    flush_interval: Annotated[Seconds, _at_least("10ms", parse_duration)] = 0.5
    """The longest a committed transaction waits before it is written, as in `500ms`."""
    retention: Annotated[Seconds, _at_least("1h", parse_duration)] = 7 * 86400.0
    """How long changes are kept, as in `7d`; whole days are dropped."""
    buffer: Annotated[Bytes, _at_least("64kB", parse_size)] = 16 << 20
    """Data that is written at once, as in `16MB`; bounds capture's memory."""
    storage: Options = Field(default={}, repr=False)
    """Options of the object store, as delta-rs names them."""


class History(Section):
    """How rows that exist already are read: snapshot and refresh."""

    parallelism: int | None = Field(default=None, ge=1, le=256)
    """Chunks that are read at a time; not set: one per core of Spark, 2 in a refresh."""
    chunk_rows: int = Field(default=20_000, ge=1, le=1_000_000)
    """Rows that a chunk of a refresh has at most."""
    chunk_bytes: Annotated[Bytes, _at_least("64kB", parse_size)] = 64 << 20
    """Table pages that a chunk of the initial snapshot reads, as in `64MB`."""
    max_rate: int | None = Field(default=None, ge=0)
    """Rows a second that are read at most; 0: no limit. Not set: 50 000 in a refresh, no limit
    in the initial snapshot."""
    window: Annotated[str, AfterValidator(reporting(_window))] | None = None
    """Time of day, UTC, in which refreshes read and a snapshot may begin, as in `22:00-06:00`."""


class Spark(Section):
    """The Spark session that pipelines run in."""

    master: str = "local[*]"
    """Where Spark runs."""
    conf: Options = Field(default={}, repr=False)
    """Further Spark settings."""


class Verify(Section):
    """A slow comparison of mirrors with the source, again and again while `pgtide run` runs."""

    interval: Annotated[Seconds, _at_least("1s", parse_duration)] = 3600.0
    """The time between the starts of two passes, as in `1h`; a longer pass is finished first."""
    rate: int = Field(default=20_000, ge=1)
    """Rows a second that are read of the source at most."""


class Pipeline(Section):
    """One way from the log to a target. NAME is 1 to 80 ASCII letters, digits, `_` and `-`."""

    sink: SinkSettings
    """Type of the target and its own settings."""
    tables: Tables = Field(default=["*.*"])
    """Patterns over `schema.table`, as in `source.tables`."""
    rules: list[Rule] = Field(default=[], repr=False)
    """What happens to a change on its way, in order: [RULES.md](../RULES.md)."""
    rules_file: str | None = None
    """More rules, after those above: a list of them, or a rule file of pg_flo."""
    routes: list[Route] = Field(default=[], repr=False)
    """Other names for tables, and the operations that reach them."""
    routes_file: str | None = None
    """More routes, after those above: a list of them, or a routing file of pg_flo."""
    on_error: Literal["stop", "park"] = "stop"
    """`park` sets a table that fails aside, with its error, and goes on with the others."""
    on_unrepresentable: Literal["fail", "null", "text"] = "fail"
    """A value that the target's type cannot hold: stop; write NULL and keep the text in the
    quarantine table; or make such columns strings."""
    unbounded_numeric: UnboundedNumeric = "string"
    """What a `numeric` without precision, or with more than 38 digits, becomes: `string`, or a
    decimal such as `decimal(38,10)`, which cannot hold every value: [TYPES.md](../TYPES.md)."""
    interval: Seconds = 0.5
    """The least time between the starts of two batches."""
    batch: Annotated[Bytes, _at_least("1MB", parse_size)] = 64 << 20
    """Compressed bytes of the log that a batch takes at most, about."""
    verify: Verify | None = None
    """Verify the mirrors in the background; off unless the section is there."""


class Config(Section):
    """Everything pgtide is told."""

    source: Source
    log: Log
    history: History = History()
    spark: Spark = Spark()
    pipelines: dict[PipelineName, Pipeline] = Field(default={})

    @model_validator(mode="after")
    def _apart(self) -> Config:
        sinks = {name: pipeline.sink for name, pipeline in self.pipelines.items()}
        try:
            check_places(self.log.path, sinks)
        except ConfigError as error:
            raise as_problem(error) from None
        return self
