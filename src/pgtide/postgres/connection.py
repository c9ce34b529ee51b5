"""Connections to the source: pinned session settings, errors with a remedy.

Everything that Postgres prints as text ends up in the log, so each session pins
the settings that change how values are printed. ``connect`` is for SQL,
``connect_replication`` speaks the streaming protocol on the same libpq.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import psycopg
from psycopg import conninfo, pq, sql

from pgtide.errors import (
    ConfigError,
    InvalidText,
    PgtideError,
    PrivilegeMissing,
    PublicationMissing,
    SlotBusy,
    SlotMissing,
    SourceError,
    SourceExhausted,
    SourceUnavailable,
)

SqlConnection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

# What decides the text form of values (design: lossless, ISO, UTC).
SESSION_PINS = (
    "SET search_path = ''; SET bytea_output = 'hex'; SET extra_float_digits = 3;"
    " SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET timezone = 'UTC';"
    " SET lc_monetary = 'C'; SET client_encoding = 'UTF8';"
    # Limits meant for the role's other uses would end a session that waits.
    " SET statement_timeout = 0; SET idle_session_timeout = 0"
)

_GAVE_UP = (
    "53100",  # disk full
    "53200",  # out of memory
    "53400",  # temp_file_limit
    "57014",  # statement_timeout
)
# What a query says whose table, or what belongs to it, was dropped while it looked: functions of
# the catalog such as pg_get_publication_tables() look past its snapshot. Never translated.
_VANISHED = ("could not open relation with OID", "cache lookup failed for")

# Values that an expression does not take, and what functions raise: such messages quote values.
_QUOTING = ("22", "P0")
_PARAMETER = "22023"  # of a command of ours

# How a refused connection ends when the role lacks REPLICATION (until 15, later) or CONNECT.
_MAY_NOT = (
    "must be superuser or replication role",
    "permission denied to start wal sender",
    "permission denied for database",
)
_CHECK = "Run: pgtide check"

# What libpq says of TLS settings that do not fit the server, or no server at all.
_TLS = ("sslmode", "certificate", "private key file", "does not support ssl")

CONNECT_TIMEOUT_S = 10
TRANSACTION_TIMEOUT_VERSION = 170_000

# A dead peer is noticed within about half a minute, without waiting for the kernel's two hours.
_DEFAULTS = {
    "connect_timeout": str(CONNECT_TIMEOUT_S),
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # ms; keep-alives say nothing while an answer is outstanding
}


def connect(
    url: str, *, autocommit: bool = True, application_name: str = "pgtide"
) -> SqlConnection:
    """Open an SQL session whose output settings are pinned."""
    try:
        conn = psycopg.connect(
            _conninfo(url, application_name), autocommit=True, prepare_threshold=None
        )
        conn.execute(SESSION_PINS)
        conn.autocommit = autocommit
    except psycopg.Error as exc:
        raise translate(exc) from exc
    return conn


def connect_replication(url: str, *, application_name: str = "pgtide") -> SqlConnection:
    """Open a walsender session in the source's database, pinned like the others; see ``run``."""
    try:
        conn = psycopg.connect(
            _conninfo(url, application_name, replication="database"), autocommit=True
        )
    except psycopg.Error as exc:
        raise translate(exc) from exc
    try:
        run(conn, SESSION_PINS)
    except BaseException:
        conn.close()
        raise
    return conn


def run(conn: SqlConnection, command: str) -> pq.abc.PGresult:
    """Run one command by the simple protocol, the only one that walsenders speak."""
    pgconn = conn.pgconn
    try:
        result = pgconn.exec_(command.encode())
    except psycopg.Error as exc:
        raise translate(exc) from exc
    if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
        raise result_error(result, pgconn)
    return result


def result_error(result: pq.abc.PGresult, pgconn: pq.abc.PGconn) -> PgtideError:
    """The pgtide error for a failed result."""

    def field(which: pq.DiagnosticField) -> str:
        return (result.error_field(which) or b"").decode(errors="replace")

    return _from_sqlstate(
        field(pq.DiagnosticField.SQLSTATE),
        field(pq.DiagnosticField.MESSAGE_PRIMARY) or pgconn.get_error_message(),
        field(pq.DiagnosticField.CONTEXT),
    )


def _conninfo(url: str, application_name: str, **extra: str) -> str:
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The parser's own message repeats the text, which may hold a password.
        raise ConfigError(
            "source.url is not a libpq connection string",
            hint="Write postgresql://user@host:5432/dbname or host=… dbname=….",
        ) from None
    merged = {**_DEFAULTS, "application_name": application_name, **given, **extra}
    return conninfo.make_conninfo(**{key: str(value) for key, value in merged.items() if value})


def no_timeouts(conn: SqlConnection, *, lock_timeout: str = "0") -> None:
    """Let a session hold its transaction for as long as it takes."""
    conn.execute("SET idle_in_transaction_session_timeout = 0")
    if conn.info.server_version >= TRANSACTION_TIMEOUT_VERSION:
        conn.execute("SET transaction_timeout = 0")
    conn.execute(sql.SQL("SET lock_timeout = {}").format(sql.Literal(lock_timeout)))


def translate(exc: psycopg.Error) -> PgtideError:
    """The pgtide error for what psycopg raised: transient and terminal are told apart here."""
    primary = exc.diag.message_primary or str(exc).strip().splitlines()[0:1]
    message = primary if isinstance(primary, str) else (primary[0] if primary else "")
    return _from_sqlstate(exc.sqlstate or "", message or type(exc).__name__, exc.diag.context or "")


def _from_sqlstate(sqlstate: str, message: str, context: str) -> PgtideError:
    if sqlstate == "55006":  # object_in_use: "replication slot … is active for PID …"
        return SlotBusy(message)
    if sqlstate == "42704" and "replication slot" in message:
        return SlotMissing(message, hint="Run: pgtide init")
    if sqlstate == "42704" and message.startswith("publication"):
        return PublicationMissing(
            message,
            detail="The server cannot decode what was written since it was dropped.",
            hint="Start over: pgtide destroy --yes, a new log.path, pgtide init",
        )
    if sqlstate in ("22021", "22P05"):
        return _invalid_text(context)
    if sqlstate in _GAVE_UP or is_vanished(sqlstate, message):
        return SourceExhausted(message)
    if sqlstate == "42501":
        return PrivilegeMissing(message, hint=_CHECK)
    if sqlstate.startswith("28"):
        return ConfigError(
            "the server refused the login",
            detail=message + ".",
            hint="Check user and password (PGPASSWORD, ~/.pgpass or a service file).",
        )
    if sqlstate == "3D000":
        return ConfigError(message, hint="Correct the database name in source.url.")
    if sqlstate.startswith(("08", "57", "53", "58")) or not sqlstate:
        return _unreachable(message)
    detail = f"The server answered SQLSTATE {sqlstate}."
    if sqlstate.startswith(_QUOTING) and sqlstate != _PARAMETER:
        detail = f"It answered SQLSTATE {sqlstate}, {_condition(sqlstate)}."
        return SourceError("the server cannot compute an expression", detail=detail)
    return SourceError(message, detail=detail)


def is_vanished(sqlstate: str, message: str) -> bool:
    """Whether a query failed since something was dropped meanwhile: the same may succeed now."""
    return sqlstate == "XX000" and message.startswith(_VANISHED)


def _condition(sqlstate: str) -> str:
    """What a code stands for, in words."""
    try:
        name = psycopg.errors.lookup(sqlstate).__name__
    except KeyError:
        return "which is not one of Postgres's own"
    return re.sub("(?<!^)([A-Z])", r" \1", name).lower()


def _invalid_text(context: str) -> InvalidText:
    """Bytes that the server cannot send; its own message quotes them, its context says where."""
    start_over = "pgtide destroy --yes, a new log.path, pgtide init"
    # Like: slot "s", output plugin "pgoutput", in the change callback, associated LSN 0/1; the
    # server may say it in another language, and the name of the callback stays.
    _, decoding, where = context.partition("pgoutput")
    if decoding and re.search(r"\bmessage\b", where):
        return InvalidText(
            "the prefix of a logical message cannot be sent as UTF-8",
            detail="The database's encoding let pg_logical_emit_message() take any bytes.",
            hint="Send prefixes in UTF-8; what is in the WAL already needs a new start: "
            + start_over,
        )
    if decoding:
        return InvalidText(
            "a value or name cannot be sent as UTF-8",
            detail="The database's encoding lets bytes into text that are no UTF-8.",
            hint="Find the rows with convert_from(column::bytea, 'UTF8') and correct them; "
            f"what was written to the WAL before needs a new start: {start_over}",
        )
    return InvalidText(
        "a name in the catalog cannot be sent as UTF-8",
        detail="The database's encoding lets bytes into names that are no UTF-8.",
        hint="Rename the schema, table, column or type, then run: pgtide check",
    )


def _unreachable(message: str) -> PgtideError:
    """A connection that failed or was lost: libpq has no SQLSTATE for a refused login."""
    message = message.strip().partition("\n")[0] or "connection lost"  # below it libpq explains
    lowered = message.lower()
    if "password" in lowered and ("no password" in lowered or "authentication" in lowered):
        return ConfigError(
            "the server refused the login",
            detail=f"{message}.",
            hint="Check user and password (PGPASSWORD, ~/.pgpass or a service file).",
        )
    if "pg_hba.conf" in lowered or "not permitted to log in" in lowered:
        return ConfigError(
            "the server refused the login",
            detail=f"{message}.",
            hint="Let the role in (ALTER ROLE … LOGIN, pg_hba.conf), then run: pgtide check",
        )
    if any(text in lowered for text in _TLS):
        return ConfigError(
            "the server cannot be reached by TLS as it was asked for",
            detail=f"{message}.",
            hint="Correct sslmode, sslrootcert, sslcert and sslkey in the URL (or PGSSLMODE and "
            "the like), then run: pgtide check",
        )
    if any(text in lowered for text in _MAY_NOT):
        return PrivilegeMissing(
            "the role may not connect like this", detail=f"{message}.", hint=_CHECK
        )
    if "does not exist" in lowered and ("database" in lowered or "role" in lowered):
        return ConfigError(
            "the server does not know that database or role",
            detail=f"{message}.",
            hint="Correct source.url in the configuration.",
        )
    return SourceUnavailable(message)
