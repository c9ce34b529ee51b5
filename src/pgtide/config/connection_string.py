"""A libpq connection string that never prints its password.

``str`` and ``repr`` name user, host, port and database; only ``reveal`` gives
the whole string, and only to whoever connects. What cannot be parsed is not
quoted in the error either, since a password may be the reason.
"""

from __future__ import annotations

from typing import Any, Final

from pgtide.errors import ConfigError

SHOWN: Final = ("user", "host", "port", "dbname", "service")
"""The parameters that may be printed."""


class ConnectionString:
    """A libpq URL or ``key=value`` string, checked with libpq's own parser."""

    __slots__ = ("_shown", "_value")

    def __init__(self, value: str) -> None:
        self._value = value
        self._shown = _describe(value)

    def reveal(self) -> str:
        """The whole string with its secrets, for connecting and for nothing else."""
        return self._value

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"ConnectionString({self._shown!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConnectionString) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


def _describe(value: str) -> str:
    # Here, because most of what loading a configuration costs would be this import.
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    failure = ConfigError(
        "not a connection string that libpq understands",
        detail="It is not repeated here because it may hold a password.",
        hint="write it as postgresql://user@host:5432/database, special characters as %XX",
    )
    if "=" not in value and "://" not in value:
        raise failure
    try:
        given: dict[str, Any] = conninfo_to_dict(value)
    except ProgrammingError:
        # Not chained: libpq's own message quotes parts of the string.
        raise failure from None
    # libpq looks at the port only when it connects; one per host, separated by commas.
    if not all(port.isdecimal() for port in str(given.get("port", "5432")).split(",") if port):
        raise failure
    shown = {name: str(given[name]) for name in SHOWN if given.get(name)}
    if "://" not in value:
        return " ".join(f"{name}={text}" for name, text in shown.items())
    user = f"{shown['user']}@" if "user" in shown else ""
    port = f":{shown['port']}" if "port" in shown else ""
    return f"postgresql://{user}{shown.get('host', '')}{port}/{shown.get('dbname', '')}"
