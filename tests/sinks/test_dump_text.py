"""The output of pg_dump, cut into statements."""

from __future__ import annotations

import pytest

from pgtide.errors import SourceError
from pgtide.sinks.postgres.dump_text import entries

DUMP = r"""--
-- PostgreSQL database dump
--

\restrict abcDEF123

-- Dumped from database version 18.4

SET transaction_timeout = 0;
SELECT pg_catalog.set_config('search_path', '', false);

--
-- Name: f(); Type: FUNCTION; Schema: shop; Owner: -
--

CREATE FUNCTION shop.f() RETURNS text
    LANGUAGE sql
    AS $$
--
-- Name: x; Type: TABLE; Schema: public; Owner: -
--
\unrestrict abcDEF123
SELECT 'é; ü';
$$;


--
-- Name: g(); Type: FUNCTION; Schema: shop; Owner: -
--

CREATE FUNCTION shop.g() RETURNS integer
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT CASE WHEN true THEN 1 ELSE 2 END;
 SELECT 2;
END;


SET default_table_access_method = heap;

--
-- Name: odd; name; Type: TABLE; Schema: shop; Owner: -
--

CREATE TABLE shop."odd; name" (
    a text DEFAULT '
--
-- Name: y; Type: TABLE; Schema: public; Owner: -
--
'
);
ALTER TABLE ONLY shop."odd; name" REPLICA IDENTITY FULL;


--
-- Name: v r; Type: RULE; Schema: shop; Owner: -
--

CREATE RULE r AS ON DELETE TO shop.v DO INSTEAD ( SELECT 1; SELECT 2; );


--
-- PostgreSQL database dump complete
--

\unrestrict abcDEF123

"""


def test_heads_count_only_between_statements() -> None:
    found = entries(DUMP)
    assert [(entry.type, entry.name) for entry in found] == [
        ("", ""),
        ("", ""),
        ("FUNCTION", "f()"),
        ("FUNCTION", "g()"),
        ("", ""),
        ("TABLE", "odd; name"),
        ("TABLE", "odd; name"),
        ("RULE", "v r"),
    ]
    assert [entry.setting for entry in found if not entry.type] == [
        "transaction_timeout",
        None,
        "default_table_access_method",
    ]
    assert found[2].statement.endswith("SELECT 'é; ü';\n$$")
    assert "\\unrestrict abcDEF123" in found[2].statement
    assert found[3].statement.endswith("SELECT 2;\nEND")
    assert [entry.creates for entry in found[5:7]] == [True, False]
    assert found[5].described == "table shop.odd; name"


def test_an_older_pg_dump_has_nothing_for_psql() -> None:
    plain = DUMP.replace("\n\\restrict abcDEF123\n", "").rpartition("\\unrestrict")[0]
    assert [entry.statement for entry in entries(plain)] == [e.statement for e in entries(DUMP)]


def test_half_a_dump_is_refused() -> None:
    with pytest.raises(SourceError, match="cannot be understood"):
        entries(DUMP[: DUMP.index("SELECT 'é")])
