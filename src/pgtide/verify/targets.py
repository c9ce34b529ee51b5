"""What a verification asks of a target, whatever it is: a lake, or another Postgres database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from pgtide.position import Position
from pgtide.shape import Shape
from pgtide.spark.layout import TableName
from pgtide.spark.logged_table import LoggedTable
from pgtide.verify.moment import SourceMoment
from pgtide.verify.postgres_side import InFlight, Row, Side, Sums
from pgtide.verify.ranges import Ranges
from pgtide.verify.relations import Relation


class Named(Protocol):
    """A column of both sides."""

    @property
    def name(self) -> str: ...

    @property
    def target(self) -> str: ...


class Plan(Protocol):
    """How a table is compared."""

    @property
    def table(self) -> TableName: ...

    @property
    def logged(self) -> LoggedTable: ...

    @property
    def source(self) -> Side: ...

    @property
    def columns(self) -> Sequence[Named]: ...

    @property
    def keys(self) -> Sequence[Named]: ...

    @property
    def key_indexes(self) -> tuple[int, ...]:
        """Of the key columns in rows of the log."""

    @property
    def numbered(self) -> bool:
        """Whether the key is one integer on both sides."""

    @property
    def left_out(self) -> Mapping[str, str]: ...


class TargetSide(Protocol):
    """The target's checksums, keys and columns; rows in flight do not count."""

    def checksums(
        self, ranges: Ranges, numbers: Sequence[int] | None = None, *, outside: bool = False
    ) -> Sums:
        """By range, rows and the sum of their hashes; ``outside``: what the source has no range
        for counts as well."""

    def rows(self, ranges: Ranges, numbers: Sequence[int]) -> list[Row]:
        """The rows of some ranges."""

    def column_hashes(self, keys: Mapping[int, tuple[str | None, ...]]) -> dict[int, list[int]]:
        """By hash of the key, a hash of each column."""

    def tagged(self, query: Callable[[], Sums]) -> Sums:
        """Run a query so that ``interrupt`` can end it; in a thread of its own."""

    def interrupt(self) -> None: ...


class PinnedTable(Protocol):
    """A table of the target at the moment that is looked at."""

    @property
    def plan(self) -> Plan: ...

    @property
    def note(self) -> str:
        """What else there is to say about it."""

    def in_flight(self, held: SourceMoment) -> InFlight:
        """Rows that may differ because they are being changed."""

    def without(self, in_flight: InFlight) -> TargetSide: ...


class PinnedTargets(Protocol):
    """A moment of the target at which it has all that was waited for."""

    def table(
        self, root: Shape, relations: tuple[Relation, ...], shapes: Mapping[int, Shape]
    ) -> PinnedTable:
        """Raises Refused when it cannot be compared."""

    def check(self) -> None:
        """Raise Yielded when somebody has waited long enough for one of the tables."""


class Targets(Protocol):
    """The tables that a pipeline writes."""

    def position(self) -> Position | None:
        """The last position that the target itself says to have; None: it does not tell."""

    def pinned(self, roots: Sequence[Shape]) -> AbstractContextManager[PinnedTargets]: ...
