"""A case for the search of the statement that fired: what the server reports, and the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pgtide.capture.statement import Fired, Statement, Unmatched, find_statement, identifiers

OWN = "PL/pgSQL function pgtide.on_ddl_command_end() line 5 at GET DIAGNOSTICS"
TWO_ADDS = "alter table t add a int; alter table t add b int"


@dataclass(frozen=True)
class Case:
    name: str
    tag: str
    query: str | None
    expected: str | None  # the text; None: unmatched
    ordinal: int = 1
    objects: tuple[str, ...] = ()  # identities
    dropped: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()  # frames below our own
    search_path: str = '"$user", public'
    functions: tuple[tuple[str, str], ...] = field(default=())


def reported(identities: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"identity": identity, "schema": identifiers(identity)[0] if "." in identity else None}
        for identity in identities
    ]


def run(case: Case) -> Statement | Unmatched:
    return find_statement(
        Fired(
            tag=case.tag,
            query=case.query,
            context="\n".join((OWN, *case.stack)),
            ordinal=case.ordinal,
            objects=reported(case.objects),
            dropped=reported(case.dropped),
            search_path=case.search_path,
            functions=[{"name": name, "source": source} for name, source in case.functions],
        )
    )


def check(case: Case) -> None:
    """The exact text comes out, or none with the reason."""
    found = run(case)
    if case.expected is None:
        assert isinstance(found, Unmatched)
        assert found.reason
    else:
        assert isinstance(found, Statement), found
        assert found.text == case.expected
