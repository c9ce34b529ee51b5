"""The settings model. The docstring under each field is its line in the reference.

Models are frozen and refuse unknown keys. Whatever may hold a secret is either
a ConnectionString or left out of ``repr``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from pgtide.config.connection_string import ConnectionString
from pgtide.config.patterns import TablePatterns
from pgtide.config.units import parse_duration, parse_size
from pgtide.errors import ConfigError

T = TypeVar("T")


def _reporting(parse: Callable[[Any], T]) -> Callable[[Any], T]:
    """Turn the ConfigError of a parser into one that pydantic gives the setting's path."""

    def validate(value: Any) -> T:
        try:
            return parse(value)
        except ConfigError as error:
            context = {"message": error.message, "detail": error.detail, "hint": error.hint}
            raise PydanticCustomError("pgtide", "{message}", context) from None

    return validate


def _connection_string(value: Any) -> ConnectionString:
    if isinstance(value, ConnectionString):
        return value
    if not isinstance(value, str):
        raise ConfigError("expected text, a libpq URL")
    return ConnectionString(value)


def _patterns(value: list[str]) -> list[str]:
    TablePatterns(value)
    return value


def _location(value: str) -> str:
    if not value.strip():
        raise ConfigError("must not be empty", hint="name a directory or an object store URL")
    return value


def _options(value: Any) -> Any:
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


def _at_least(text: str, parse: Callable[[Any], float]) -> AfterValidator:
    limit = parse(text)

    def check(value: float) -> float:
        if value < limit:
            raise ConfigError(f"must be at least {text}")
        return value

    return AfterValidator(_reporting(check))


Url = Annotated[ConnectionString, PlainValidator(_reporting(_connection_string))]
Seconds = Annotated[float, BeforeValidator(_reporting(parse_duration))]
Bytes = Annotated[int, BeforeValidator(_reporting(parse_size))]
Tables = Annotated[list[str], AfterValidator(_reporting(_patterns))]
Options = Annotated[dict[str, str], BeforeValidator(_options)]


class Section(BaseModel):
    """What all parts of the configuration have in common."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


class Source(Section):
    """The Postgres database that changes are captured from."""

    url: Url
    """libpq URL or `key=value` string of the role that captures."""
    admin_url: Url | None = None
    """The role that `init` and `destroy` connect as; `url` when not set."""
    slot: str = Field(default="pgtide", pattern=r"^[a-z0-9_]{1,63}$")
    """Name of the replication slot and of the publication."""
    tables: Tables = ["*.*"]
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

    path: Annotated[str, AfterValidator(_reporting(_location))]
    """Directory, relative to the configuration file, or an object store URL (`s3://…`)."""
    flush_interval: Annotated[Seconds, _at_least("10ms", parse_duration)] = 0.5
    """The longest a committed transaction waits before it is written, as in `500ms`."""
    retention: Annotated[Seconds, _at_least("1h", parse_duration)] = 7 * 86400.0
    """How long changes are kept, as in `7d`; whole days are dropped."""
    buffer: Annotated[Bytes, _at_least("64kB", parse_size)] = 16 << 20
    """Data that is written at once, as in `16MB`; bounds capture's memory."""
    storage: Options = Field(default={}, repr=False)
    """Options of the object store, as delta-rs names them."""


class Spark(Section):
    """The Spark session that pipelines run in."""

    master: str = "local[*]"
    """Where Spark runs."""
    conf: Options = Field(default={}, repr=False)
    """Further Spark settings."""


class Pipeline(Section):
    """One way from the log to a target."""

    sink: dict[str, Any] = Field(repr=False)
    """Type of the target and its own settings."""
    tables: Tables = ["*.*"]
    """Patterns over `schema.table`, as in `source.tables`."""
    rules: list[dict[str, Any]] = Field(default=[], repr=False)
    """What happens to a change on its way, in order."""


class Config(Section):
    """Everything pgtide is told."""

    source: Source
    log: Log
    spark: Spark = Spark()
    pipelines: dict[str, Pipeline] = {}
