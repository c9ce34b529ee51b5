"""The type of settings that hold a connection string."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import PlainValidator

from pgtide.config.connection_string import ConnectionString
from pgtide.config.section import reporting
from pgtide.errors import ConfigError


def _connection_string(value: Any) -> ConnectionString:
    if isinstance(value, ConnectionString):
        return value
    if not isinstance(value, str):
        raise ConfigError("expected text, a libpq URL")
    return ConnectionString(value)


Url: TypeAlias = Annotated[ConnectionString, PlainValidator(reporting(_connection_string))]
