"""A source with everything a schema may have, and its copy made without copying rows."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from pgtide.config import Config
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.publication import publication_names
from pgtide.snapshot.keeper import Keeper
from pgtide.snapshot.request import Request, requested
from pgtide.snapshot.tables import Selection
from pgtide.snapshot.target_schemas import TargetSchemas
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database

SHOP = """
CREATE SCHEMA shop; CREATE SCHEMA util; CREATE SCHEMA "Odd one"; CREATE SCHEMA elsewhere;
CREATE TYPE shop.mood AS ENUM ('happy', 'sad');
CREATE TYPE util.pair AS (a int, b text);
CREATE DOMAIN util.positive AS int CHECK (VALUE > 0);
CREATE FUNCTION util.touched() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
-- Name: nothing; Type: TABLE; Schema: public; Owner: -
NEW.touched := now(); RETURN NEW; END $$;
CREATE FUNCTION util.plus(a int) RETURNS int LANGUAGE sql IMMUTABLE BEGIN ATOMIC
    SELECT CASE WHEN a > 0 THEN 1 ELSE 2 END; SELECT a + 1; END;
CREATE TABLE shop.customers (
    id serial PRIMARY KEY, name text NOT NULL UNIQUE, mood shop.mood DEFAULT 'happy',
    age util.positive, odd util.pair, CHECK (name <> ''));
CREATE TABLE shop.orders (
    id bigint GENERATED ALWAYS AS IDENTITY (START WITH 100) PRIMARY KEY,
    customer int REFERENCES shop.customers, total numeric(12, 2) NOT NULL DEFAULT 0,
    twice numeric GENERATED ALWAYS AS (total * 2) STORED, touched timestamptz,
    search tsvector, EXCLUDE (id WITH =));
CREATE INDEX orders_total ON shop.orders (util.plus(customer)) WHERE total > 0;
CREATE TRIGGER touched BEFORE UPDATE ON shop.orders
    FOR EACH ROW EXECUTE FUNCTION util.touched();
CREATE TABLE shop.events (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE shop.events_2024 PARTITION OF shop.events
    FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE shop.events_2025 PARTITION OF shop.events
    FOR VALUES FROM ('2025-01-01') TO ('2026-01-01') PARTITION BY LIST (id);
CREATE TABLE shop.events_2025_1 PARTITION OF shop.events_2025 DEFAULT;
CREATE TABLE "Odd one"."o""dd; Type: x" (id int PRIMARY KEY, "sélect" text);
COMMENT ON TABLE "Odd one"."o""dd; Type: x" IS 'it''s; odd';
CREATE UNLOGGED TABLE shop.cache (k text PRIMARY KEY);
CREATE VIEW shop.happy AS SELECT * FROM shop.customers WHERE mood = 'happy';
CREATE VIEW shop.by_customer AS SELECT c.*, count(*) FROM shop.customers c
    JOIN shop.orders o ON o.customer = c.id GROUP BY c.id;
CREATE MATERIALIZED VIEW shop.totals AS SELECT customer, sum(total) FROM shop.orders GROUP BY 1;
CREATE UNIQUE INDEX ON shop.totals (customer);
CREATE SEQUENCE shop.tickets INCREMENT 5;
ALTER TABLE shop.customers ENABLE ROW LEVEL SECURITY;
CREATE POLICY grown ON shop.customers USING (age >= 18);
CREATE RULE quiet AS ON DELETE TO shop.happy DO INSTEAD (SELECT 1; SELECT 2);
CREATE CAST (shop.mood AS util.pair) WITH INOUT;
CREATE STATISTICS shop.dependent ON customer, total FROM shop.orders;
CREATE FUNCTION elsewhere.unneeded() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE VIEW elsewhere.orders AS SELECT id, total FROM shop.orders;
"""

OBJECTS = """
SELECT pg_describe_object(d.classid, d.objid, 0) FROM (
    SELECT 'pg_class'::regclass AS classid, oid AS objid, relnamespace AS ns FROM pg_class
    UNION SELECT 'pg_proc'::regclass, oid, pronamespace FROM pg_proc
    UNION SELECT 'pg_type'::regclass, oid, typnamespace FROM pg_type
    UNION SELECT 'pg_constraint'::regclass, oid, connamespace FROM pg_constraint
        WHERE contype <> 'n'
    UNION SELECT 'pg_statistic_ext'::regclass, oid, stxnamespace FROM pg_statistic_ext
    UNION SELECT 'pg_trigger'::regclass, t.oid, relnamespace FROM pg_trigger t
        JOIN pg_class c ON c.oid = tgrelid WHERE NOT tgisinternal
    UNION SELECT 'pg_policy'::regclass, p.oid, relnamespace FROM pg_policy p
        JOIN pg_class c ON c.oid = polrelid
    UNION SELECT 'pg_rewrite'::regclass, r.oid, relnamespace FROM pg_rewrite r
        JOIN pg_class c ON c.oid = ev_class
    UNION SELECT 'pg_cast'::regclass, oid, 2200 FROM pg_cast WHERE oid > 16383
) d JOIN pg_namespace n ON n.oid = d.ns
WHERE n.nspname <> ALL ('{pg_catalog,information_schema,pgtide,pg_toast}')
  AND n.nspname !~ '^pg_' ORDER BY 1
"""

COLUMNS = """
SELECT n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       a.attidentity::text, a.attgenerated::text, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'v', 'm')
  AND n.nspname <> ALL ('{pg_catalog,information_schema,pgtide,pg_toast}')
ORDER BY n.nspname, c.relname, a.attnum
"""


def config_of(captured: Captured, target: Database | str, **pipeline: Any) -> Config:
    """The configuration with a replica in ``target``."""
    url = target if isinstance(target, str) else target.url
    replica = {"sink": {"type": "postgres", "url": url}, **pipeline}
    return Config.model_validate({**captured.settings, "pipelines": {"replica": replica}})


@dataclass
class Copying:
    """A schema that is copied as a snapshot would, without its rows."""

    config: Config

    def __post_init__(self) -> None:
        self.schemas = TargetSchemas(self.config, ["replica"])
        self.point = Lsn(0)

    def run(self, *, fail: bool = False) -> list[str]:
        """Copy it; what was left out. ``fail``: as if the log could not be written."""
        with Keeper(self.config.source.url.reveal(), self._select, threading.Event()) as keeper:
            assert keeper.held is not None
            self.point = keeper.held.point
            self.schemas.check(keeper.held.selection)
            self.schemas.read(keeper.conn, keeper.held)
            with self.schemas.making(self.point):
                if fail:
                    raise InterruptedError
        return self.schemas.notes

    def _select(self, conn: SqlConnection) -> Selection:
        names = publication_names(conn, self.config.source.slot)
        return requested(conn, self.config, Request(), names)
