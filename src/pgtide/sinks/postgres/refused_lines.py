"""The line that a target refuses, of all that were sent to it by one COPY.

What the server says of its place is not exact (an encoding is checked in blocks, and words come in
the server's language). So halves are sent again, until one line is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg.abc import Buffer
from psycopg.copy import LibpqWriter
from psycopg.generators import copy_to

from pgtide.position import Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.failures import TableRefused, is_of_a_row, row_refused
from pgtide.spark.layout import TableName

PIECE_BYTES = 256 << 10  # that are on their way at a time
_NULL = rb"\N"
_ESCAPED = {b"\\": b"\\", b"t": b"\t", b"n": b"\n", b"r": b"\r"}


@dataclass(frozen=True)
class Destination:
    """Where lines of one kind go, and what tells their rows apart."""

    command: str  # COPY … FROM STDIN
    table: TableName  # of the target, whose rows they are
    key: Mapping[str, int]  # names of columns, and the fields of a line that hold them

    def refusal(self, line: bytes, position: Position, error: psycopg.Error) -> TableRefused:
        """The error for a line that was refused."""
        fields = fields_of(line)
        key = {name: fields[place] for name, place in self.key.items()}
        constraint = error.diag.constraint_name
        return row_refused(self.table, position, key, error.sqlstate or "", constraint)


class LineRefused(Exception):
    """A line that its destination does not take."""

    def __init__(self, stage: int, number: int, line: bytes, error: psycopg.Error) -> None:
        super().__init__(stage, number)
        self.stage = stage
        self.number = number  # of all lines for this stage that the task has
        self.line = line
        self.error = error


class _Flushing(LibpqWriter):
    """Waits until what was written is gone.

    libpq would keep all that the server does not take at once, and move it with every bit it takes.
    """

    def write(self, data: Buffer) -> None:
        view = memoryview(data)
        for begin in range(0, len(view), PIECE_BYTES):
            piece = view[begin : begin + PIECE_BYTES]
            self.connection.wait(copy_to(self.connection.pgconn, piece, flush=True))


def send(connection: SqlConnection, command: str, texts: Iterable[memoryview | bytes]) -> None:
    """Copy lines; if they are refused the transaction is as it was before."""
    with (
        connection.transaction(),
        connection.cursor() as cursor,
        cursor.copy(command.encode(), writer=_Flushing(cursor)) as copy,
    ):
        for text in texts:
            copy.write(text)


def find_refused(
    connection: SqlConnection, command: str, lines: Sequence[bytes]
) -> tuple[int, psycopg.Error] | None:
    """The first line that is not taken, by number, and why; None if now all are."""
    number = 0
    while True:
        half = max(1, len(lines) // 2)
        try:
            send(connection, command, lines[:half])
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            if len(lines) == 1:
                return number, error
            lines = lines[:half]
        else:
            number, lines = number + half, lines[half:]
            if not lines:
                return None


def fields_of(line: bytes) -> list[str | None]:
    """What the fields of a line say."""
    return [_value(field) for field in line.rstrip(b"\n").split(b"\t")]


def _value(field: bytes) -> str | None:
    if field == _NULL:
        return None
    first, *parts = field.split(b"\\")
    value, taken = first, False
    for part in parts:
        if taken:  # behind a backslash that was itself written as two
            value, taken = value + part, False
        elif part:
            value += _ESCAPED[part[:1]] + part[1:]
        else:
            value, taken = value + b"\\", True
    return value.decode()
