"""Tables that are being read as a whole: what is missing of their rows now comes later.

An update may not carry a large value that did not change. If the target does not have the row
yet, because a refresh has not come to it, the update can be passed over: the refresh reads the
row after it. Without such a refresh nothing would ever bring the value.
"""

from __future__ import annotations

import logging
from functools import cached_property

from pgtide.log.refreshes import ENDED, Refresh, RefreshStore, Standing, id_of_ddl
from pgtide.log.storage import Storage
from pgtide.position import Position
from pgtide.shape import Shape
from pgtide.spark.layout import TableName

logger = logging.getLogger(__name__)


class Completion:
    """The refreshes of whole tables, looked up once for each batch, and only if one is in need."""

    def __init__(self, log: Storage) -> None:
        self._log = log

    def covers(self, table: TableName, oid: int, at: Position) -> bool:
        """Whether rows of a table are still to be read behind a position of the log.

        One partition's rows are not all of them.
        """
        name = ".".join(table)
        return any(
            request.is_of(name, oid) and _reads_behind(standing, at)
            for request, standing in self._refreshes
        )

    def ask(self, shape: Shape, at: Position, why: str) -> None:
        """Have a table read behind a command, once however often the command comes."""
        id = id_of_ddl(at.lsn, shape.oid)
        if RefreshStore(self._log).add(Refresh(shape.name, id, oid=shape.oid, reason="ddl")):
            logger.info("%s is to be read again behind %s: %s", shape.name, at, why)

    @cached_property
    def _refreshes(self) -> list[tuple[Refresh, Standing]]:
        store = RefreshStore(self._log)
        whole = [request for request in store.requests() if request.whole]
        return [(request, store.standing(request.id)) for request in whole]


def _reads_behind(standing: Standing, at: Position) -> bool:
    """Under way or to come; or done, while a pipeline that is behind has not come to its rows."""
    if standing.state == "done":
        return standing.until is not None and standing.until > at.lsn
    return standing.state not in ENDED
