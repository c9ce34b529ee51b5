"""Lsn and Position: where something is in the WAL and in the change log.

A bare ``int`` or ``str`` never stands for either in a signature. An ``Lsn`` is
an integer that prints the way Postgres prints it; a ``Position`` is an ``Lsn``
with the index of a row inside its transaction, and orders the whole log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from pgtide.errors import ConfigError

_LAST_SEQ = (1 << 63) - 1  # behind every row of an LSN
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_POSITION = re.compile(r"([0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8})(?::(\d+))?")


class Lsn(int):
    """A byte offset in the WAL, written as Postgres writes it: ``16/B374D848``."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the form ``16/B374D848``."""
        match = _LSN.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"invalid LSN {text!r}", hint="Write it as Postgres does, e.g. 16/B374D848."
            )
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """The place of one row in the log's total order: commit LSN, index in the transaction."""

    lsn: Lsn
    seq: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read ``16/B374D848:3``, or ``16/B374D848`` for the start of a transaction."""
        match = _POSITION.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"invalid position {text!r}",
                hint="Write LSN or LSN:SEQ, e.g. 16/B374D848:3.",
            )
        return cls(Lsn.parse(match[1]), int(match[2] or 0))

    @classmethod
    def end_of(cls, lsn: Lsn) -> Position:
        """Behind every row that has this LSN."""
        return cls(lsn, _LAST_SEQ)

    @property
    def next(self) -> Position:
        """The first place behind this one."""
        if self.seq == _LAST_SEQ:
            return Position(Lsn(self.lsn + 1))
        return Position(self.lsn, self.seq + 1)

    def __str__(self) -> str:
        return f"{self.lsn}:{self.seq}"
