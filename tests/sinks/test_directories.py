"""Where tables lie at a target."""

from __future__ import annotations

import pytest

from pgtide.sinks.directories import table_path


@pytest.mark.parametrize(
    ("table", "path"),
    [
        (("public", "orders"), "public/orders"),
        (("a/b", "../x y"), "a~2Fb/..~2Fx~20y"),
        (("..", "ä"), "~2E~2E/~C3~A4"),
        # Only a schema could be taken for what pgtide keeps beside them.
        (("_pgtide", "a"), "~5Fpgtide/a"),
        (("_messages", "_messages"), "~5Fmessages/_messages"),
        (("public", "_pgtide"), "public/_pgtide"),
        # Delta would take the directory above for a table.
        (("public", "_delta_log"), "public/~5Fdelta_log"),
        (("_delta_log", "a"), "~5Fdelta_log/a"),
    ],
)
def test_paths_of_tables(table: tuple[str, str], path: str) -> None:
    assert table_path(table) == path
