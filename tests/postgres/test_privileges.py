"""``init`` and ``destroy`` with as few rights as possible."""

from __future__ import annotations

import psycopg
import pytest

from pgtide.errors import PrivilegeMissing, SourceError
from pgtide.postgres.connection import connect, connect_replication, run
from pgtide.postgres.ddl_trigger import read_key
from pgtide.postgres.settings import read_slot_settings
from pgtide.postgres.setup import init
from pgtide.postgres.teardown import destroy
from tests.fixtures.databases import Database
from tests.postgres.source import make_config, script_of


@pytest.fixture
def admin(database: Database) -> Database:
    """A database with an application's table."""
    database.execute("CREATE TABLE keyed (id int PRIMARY KEY)")
    return database


@pytest.fixture
def capture_url(admin: Database) -> str:
    return admin.create_role("LOGIN REPLICATION")


def test_least_privilege(admin: Database, capture_url: str) -> None:
    """The role of docs/OPERATIONS.md: LOGIN REPLICATION and what init grants, nothing more."""
    result = init(make_config(admin, url=capture_url, admin_url=admin.url))
    assert result.slot_created
    admin.execute("INSERT INTO keyed VALUES (1); CREATE TABLE more (id int PRIMARY KEY)")
    with connect(capture_url) as conn:
        assert read_key(conn) is not None
        assert read_slot_settings(conn, admin.name) is not None
        rows = conn.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', %s, 'messages', 'true')",
            [admin.name, admin.name],
        ).fetchall()
        assert {b"I", b"M"} <= {bytes(data[:1]) for (data,) in rows}
        conn.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [admin.name])
        conn.execute("SELECT pg_logical_emit_message(false, 'pgtide.heartbeat', '')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT * FROM public.keyed")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("UPDATE pgtide.settings SET value = '{}'")
    with connect_replication(capture_url) as stream:
        run(stream, f"CREATE_REPLICATION_SLOT {admin.name}_t TEMPORARY LOGICAL pgoutput")
    destroy(make_config(admin, url=capture_url, admin_url=admin.url))


def test_role_without_replication_is_given_it(admin: Database) -> None:
    url = admin.create_role("LOGIN")
    init(make_config(admin, url=url, admin_url=admin.url))
    role = admin.roles[-1]
    assert admin.execute(f"SELECT rolreplication FROM pg_roles WHERE rolname = '{role}'") == [
        (True,)
    ]
    result = destroy(make_config(admin, url=url, admin_url=admin.url))
    assert f"role {role} may replicate" in result.left


def test_script_of_a_dba_is_enough_for_the_capture_role(admin: Database, capture_url: str) -> None:
    dry = init(make_config(admin, url=capture_url, admin_url=admin.url), dry_run=True)
    with admin.connect() as conn:
        conn.execute(script_of(dry).encode())
    result = init(make_config(admin, url=capture_url))
    assert result.slot_created
    destroy(make_config(admin, url=capture_url, admin_url=admin.url))


def test_role_without_rights_is_told_so(admin: Database, capture_url: str) -> None:
    with pytest.raises(PrivilegeMissing) as caught:
        init(make_config(admin, url=capture_url))
    assert "admin_url" in caught.value.hint


def test_owner_without_superuser_gets_a_list_and_no_trigger(admin: Database) -> None:
    url = admin.create_role("LOGIN REPLICATION")
    role = admin.roles[-1]
    admin.execute(f"ALTER DATABASE {admin.name} OWNER TO {role}; ALTER TABLE keyed OWNER TO {role}")
    result = init(make_config(admin, url=url))
    notes = [step.text for step in result.steps if step.note]
    assert any("may not create event triggers" in note for note in notes)
    assert any("tables created later are not captured" in note for note in notes)
    destroy(make_config(admin, url=url))
    admin.execute(f"REASSIGN OWNED BY {role} TO postgres")


def test_schema_of_somebody_else_is_not_used(admin: Database, capture_url: str) -> None:
    role = admin.roles[-1]
    owner_url = admin.create_role("LOGIN")
    owner = admin.roles[-1]
    admin.execute(f"CREATE SCHEMA pgtide AUTHORIZATION {owner}")
    admin.execute(f"GRANT CREATE ON DATABASE {admin.name} TO {role}")
    with pytest.raises(SourceError, match="schema pgtide belongs to"):
        init(make_config(admin, url=capture_url))
    assert owner_url
    admin.execute(f"DROP SCHEMA pgtide; REVOKE ALL ON DATABASE {admin.name} FROM {role}")
