-- pgtide: every DDL command as one signed, transactional logical message.
--
--   sql_drop --+-- facts, in a signed transaction-local setting
--   rewrite  --+--> ddl_command_end --> pg_logical_emit_message('pgtide.ddl')
--
-- Message: hex(HMAC-SHA256(key, body)) \n body, body a JSON object in UTF-8.
-- Any role may emit logical messages and change custom settings: what is not
-- signed is not believed, and facts are signed apart from messages so that one
-- can never pass for the other. Runs again without harm; needs Postgres 14 and the
-- schema pgtide with its table settings. ASCII, for databases of every encoding.

-- Triggers fire in the order of their names. Others may run DDL of their own, which must not be
-- told of before the command that they fired for: hence the underscore. Earlier ones had none.
DROP EVENT TRIGGER IF EXISTS pgtide_sql_drop;
DROP EVENT TRIGGER IF EXISTS pgtide_table_rewrite;
DROP EVENT TRIGGER IF EXISTS pgtide_ddl_command_end;
DROP EVENT TRIGGER IF EXISTS _pgtide_sql_drop;
DROP EVENT TRIGGER IF EXISTS _pgtide_table_rewrite;
DROP EVENT TRIGGER IF EXISTS _pgtide_ddl_command_end;

-- One row: the HMAC key, already combined with the two paddings of RFC 2104.
CREATE TABLE IF NOT EXISTS pgtide.secret (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    inner_pad bytea NOT NULL CHECK (octet_length(inner_pad) = 64),
    outer_pad bytea NOT NULL CHECK (octet_length(outer_pad) = 64)
);

REVOKE ALL ON pgtide.secret FROM PUBLIC;

-- gen_random_uuid() draws 122 bits from the server's strong generator; four of them make the key.
WITH random AS MATERIALIZED (
    SELECT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
        || sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())) AS key
)
INSERT INTO pgtide.secret (inner_pad, outer_pad)
SELECT string_agg(set_byte(zero, 0, get_byte(key, i) # 54), NULL ORDER BY i),
       string_agg(set_byte(zero, 0, get_byte(key, i) # 92), NULL ORDER BY i)
FROM random, decode('00', 'hex') AS zero, generate_series(0, 63) AS i
ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION pgtide.sign(message text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
    SELECT encode(sha256(outer_pad || sha256(inner_pad || convert_to(message, 'UTF8'))), 'hex')
    FROM pgtide.secret);
END
$$;

CREATE OR REPLACE FUNCTION pgtide.emit(body jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    signature text := pgtide.sign(body::text);
BEGIN
    IF signature IS NULL THEN
        RAISE EXCEPTION 'pgtide.secret is empty';
    END IF;
    -- As bytes: a text would travel in the server's own encoding.
    PERFORM pg_logical_emit_message(
        true, 'pgtide.ddl', convert_to(signature || chr(10) || body::text, 'UTF8'));
    -- Postgres queues a message at the end of its record and a row at the start of its own: the
    -- two are equal when the row comes next, and across subtransactions (our EXCEPTION block is
    -- one) equals are delivered in any order. One record in between keeps the command first.
    PERFORM pg_logical_emit_message(true, 'pgtide.spacer', '');
END
$$;

-- What is left to say when a trigger failed: the command happened, its facts are unknown.
CREATE OR REPLACE FUNCTION pgtide.emit_unknown(tag text, code text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    body jsonb := jsonb_build_object('v', 1, 'xid', pg_current_xact_id()::text,
                                     'unknown', true, 'tag', tag, 'error', code);
BEGIN
    PERFORM pgtide.emit(body);
EXCEPTION WHEN OTHERS THEN
    PERFORM pg_logical_emit_message(
        true, 'pgtide.ddl', convert_to(chr(10) || body::text, 'UTF8'));
    PERFORM pg_logical_emit_message(true, 'pgtide.spacer', '');
END
$$;

-- Names this query string in this transaction: facts signed elsewhere do not fit.
CREATE OR REPLACE FUNCTION pgtide.moment() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
    SELECT concat_ws('/', pg_current_xact_id(), pg_backend_pid(),
                     (extract(epoch FROM statement_timestamp()) * 1000000)::bigint));
END
$$;

CREATE OR REPLACE FUNCTION pgtide.facts() RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stored text := coalesce(current_setting('pgtide.facts', true), '');
    body text := substr(stored, 66);
BEGIN
    IF body <> '' AND left(stored, 64) = pgtide.sign('facts' || chr(10) || body)
       AND body::jsonb ->> 'moment' = pgtide.moment() THEN
        RETURN body::jsonb;
    END IF;
    RETURN jsonb_build_object('moment', pgtide.moment(), 'left_out', 0,
                              'dropped', jsonb_build_array(), 'rewrites', jsonb_build_array());
END
$$;

CREATE OR REPLACE FUNCTION pgtide.keep_facts(kind text, items jsonb, left_out bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    facts jsonb := pgtide.facts();
    body text;
BEGIN
    body := facts || jsonb_build_object(
        kind, (facts -> kind) || items, 'left_out', (facts ->> 'left_out')::bigint + left_out);
    PERFORM set_config(
        'pgtide.facts', pgtide.sign('facts' || chr(10) || body) || chr(10) || body, true);
END
$$;

CREATE OR REPLACE FUNCTION pgtide.on_sql_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept jsonb;
    left_out bigint;
BEGIN
    SELECT coalesce(jsonb_agg(jsonb_build_object(
               'type', d.object_type, 'schema', d.schema_name, 'name', d.object_name,
               'identity', d.object_identity, 'oid', d.objid::bigint, 'subid', d.objsubid,
               'original', d.original, 'normal', d.normal, 'table', t.oid::bigint
           )) FILTER (WHERE NOT h.hidden), jsonb_build_array()),
           count(*) FILTER (WHERE h.hidden)
    INTO kept, left_out
    FROM pg_event_trigger_dropped_objects() AS d
    CROSS JOIN LATERAL (
        SELECT CASE WHEN d.schema_name IS NOT NULL THEN d.schema_name
                    WHEN d.object_type = 'schema' OR cardinality(d.address_names) > 1
                    THEN d.address_names[1] ELSE '' END AS home
    ) AS s
    CROSS JOIN LATERAL (
        SELECT d.is_temporary OR left(s.home, 7) = 'pg_temp'
            OR s.home IN ('pg_toast', 'pgtide') AS hidden
    ) AS h
    -- The table that lost a part of itself and is still there.
    LEFT JOIN pg_class AS t ON CASE
        WHEN d.classid = 'pg_class'::regclass THEN d.objsubid <> 0 AND t.oid = d.objid
        WHEN d.object_type IN ('table constraint', 'default value', 'trigger', 'policy', 'rule')
        THEN t.relname = d.address_names[2]
            AND t.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = d.address_names[1])
        ELSE false END;
    PERFORM pgtide.keep_facts('dropped', kept, left_out);
EXCEPTION WHEN OTHERS THEN
    PERFORM pgtide.emit_unknown(tg_tag, SQLSTATE);
END
$$;

CREATE OR REPLACE FUNCTION pgtide.on_table_rewrite() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reason integer := pg_event_trigger_table_rewrite_reason();
    items jsonb;
BEGIN
    SELECT jsonb_agg(jsonb_build_object(
               'oid', c.oid::bigint, 'schema', n.nspname, 'table', c.relname, 'reason', reason,
               'reasons', to_jsonb(array_remove(ARRAY[
                   CASE WHEN reason & 1 <> 0 THEN 'persistence' END,
                   CASE WHEN reason & 2 <> 0 THEN 'default' END,
                   CASE WHEN reason & 4 <> 0 THEN 'type' END,
                   CASE WHEN reason & 8 <> 0 THEN 'access_method' END], NULL))))
    INTO items
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = pg_event_trigger_table_rewrite_oid() AND c.relpersistence <> 't';
    IF items IS NOT NULL THEN
        PERFORM pgtide.keep_facts('rewrites', items, 0);
    END IF;
EXCEPTION WHEN OTHERS THEN
    PERFORM pgtide.emit_unknown(tg_tag, SQLSTATE);
END
$$;

-- How many DDL commands this query string has run, this one included: all of them, and those
-- that are statements of the string itself. Not signed: whoever changes it spoils the order of
-- his own statements, and their objects then do not match.
CREATE OR REPLACE FUNCTION pgtide.count_command(
    top_level boolean, OUT ordinal integer, OUT top_ordinal integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    this_string text := (extract(epoch FROM statement_timestamp()) * 1000000)::bigint;
    stored text[] := regexp_match(coalesce(current_setting('pgtide.ordinal', true), ''),
                                  '^([0-9]{1,18}) ([0-9]{1,8}) ([0-9]{1,8})$');
BEGIN
    IF stored[1] IS DISTINCT FROM this_string THEN
        stored := ARRAY[this_string, '0', '0'];
    END IF;
    ordinal := stored[2]::integer + 1;
    top_ordinal := stored[3]::integer + top_level::integer;
    PERFORM set_config(
        'pgtide.ordinal', concat_ws(' ', this_string, ordinal, top_ordinal), false);
END
$$;

-- Whether the command comes from an extension's script. One that lists nothing (a DROP) bears no
-- mark. The server runs scripts with two settings that anybody could make, so where they are
-- found an object is created and undone: inside a script, and only there, it becomes a member.
CREATE OR REPLACE FUNCTION pgtide.in_extension(tag text, caller_path text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    member boolean := (SELECT bool_and(in_extension) FROM pg_event_trigger_ddl_commands());
BEGIN
    IF member IS NOT NULL OR tag LIKE '% EXTENSION' OR right(caller_path, 9) <> ', pg_temp'
       OR current_setting('check_function_bodies') = 'on' THEN
        RETURN coalesce(member, false);
    END IF;
    BEGIN
        PERFORM set_config('pgtide.guard', pgtide.sign('guard' || pgtide.moment()), true);
        CREATE FUNCTION pg_temp.pgtide_probe() RETURNS integer LANGUAGE sql AS 'SELECT 1';
        member := EXISTS (
            SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND deptype = 'e'
                AND objid = to_regprocedure('pg_temp.pgtide_probe()'));
        RAISE EXCEPTION 'undo';
    EXCEPTION WHEN OTHERS THEN
        RETURN coalesce(member, false);
    END;
END
$$;

-- The relation that an object is, or is a part of; null for everything else.
CREATE OR REPLACE FUNCTION pgtide.home_relation(class oid, object oid) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
    SELECT CASE class
        WHEN 'pg_class'::regclass THEN
            coalesce((SELECT indrelid FROM pg_index WHERE indexrelid = object), object)
        WHEN 'pg_constraint'::regclass THEN
            (SELECT nullif(conrelid, 0) FROM pg_constraint WHERE oid = object)
        WHEN 'pg_trigger'::regclass THEN (SELECT tgrelid FROM pg_trigger WHERE oid = object)
        WHEN 'pg_attrdef'::regclass THEN (SELECT adrelid FROM pg_attrdef WHERE oid = object)
        WHEN 'pg_policy'::regclass THEN (SELECT polrelid FROM pg_policy WHERE oid = object)
        WHEN 'pg_rewrite'::regclass THEN (SELECT ev_class FROM pg_rewrite WHERE oid = object)
    END);
END
$$;

-- The objects that the command made or changed, without temporary ones, extensions' and ours.
CREATE OR REPLACE FUNCTION pgtide.commands(
    OUT class oid, OUT object oid, OUT subid integer, OUT tag text, OUT type text,
    OUT schema text, OUT identity text, OUT home oid
) RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT d.classid, d.objid, d.objsubid, d.command_tag, d.object_type, d.schema_name,
           d.object_identity, h.oid
    FROM pg_event_trigger_ddl_commands() AS d
    LEFT JOIN pg_class AS h ON h.oid = pgtide.home_relation(d.classid, d.objid)
    WHERE NOT d.in_extension
      AND coalesce(d.schema_name, '') NOT IN ('pg_temp', 'pgtide')
      AND NOT (d.object_type = 'schema' AND coalesce(d.object_identity, '') = 'pgtide')
      AND coalesce(h.relpersistence, 'p') <> 't'
      AND coalesce(h.relnamespace, 0) IS DISTINCT FROM
          (SELECT oid FROM pg_namespace WHERE nspname = 'pgtide');
END
$$;

-- Every table whose layout or name the command may have changed. ALTER TABLE does not list the
-- descendants it reaches, nor ALTER SCHEMA, TYPE and DOMAIN the tables that are printed anew.
CREATE OR REPLACE FUNCTION pgtide.affected(parts oid[]) RETURNS oid[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
    WITH RECURSIVE command AS MATERIALIZED (
        SELECT * FROM pgtide.commands()
    ), altered_type AS (
        -- The attributes of a composite type are those of its relation.
        SELECT CASE c.class WHEN 'pg_type'::regclass THEN c.object ELSE y.reltype END AS oid
        FROM command AS c
        LEFT JOIN pg_class AS y ON c.class = 'pg_class'::regclass AND y.oid = c.object
        WHERE c.tag IN ('ALTER TYPE', 'ALTER DOMAIN')
        UNION
        -- Arrays, domains, ranges and other row types that are made of it.
        SELECT CASE d.classid WHEN 'pg_type'::regclass THEN d.objid ELSE y.reltype END
        FROM altered_type AS t
        JOIN pg_depend AS d ON d.refclassid = 'pg_type'::regclass AND d.refobjid = t.oid
            AND d.classid IN ('pg_type'::regclass, 'pg_class'::regclass)
        LEFT JOIN pg_class AS y ON d.classid = 'pg_class'::regclass AND y.oid = d.objid
    ), family AS (
        SELECT home AS oid FROM command WHERE home IS NOT NULL
        UNION
        SELECT unnest(parts)
        UNION
        SELECT r.oid FROM command AS c JOIN pg_class AS r ON c.class = 'pg_namespace'::regclass
            AND r.relnamespace = c.object AND c.tag = 'ALTER SCHEMA'
        UNION
        SELECT d.objid FROM altered_type AS t JOIN pg_depend AS d ON d.refobjid = t.oid
            AND d.refclassid = 'pg_type'::regclass AND d.classid = 'pg_class'::regclass
        UNION
        SELECT r.oid FROM command AS c JOIN pg_class AS y ON c.class = 'pg_class'::regclass
            AND y.oid = c.object AND y.relkind = 'c'
        JOIN pg_class AS r ON r.reloftype = y.reltype
        UNION
        -- A detached partition is no longer below its parent: it is one of the tables whose
        -- catalog row is as young as this transaction.
        SELECT r.oid FROM pg_class AS r
        WHERE r.relkind IN ('r', 'p') AND r.relpersistence <> 't' AND NOT r.relispartition
          AND age(r.xmin) <= 0
          AND EXISTS (SELECT FROM command AS c JOIN pg_class AS y ON y.oid = c.object
                      WHERE c.tag = 'ALTER TABLE' AND y.relkind = 'p')
        UNION
        SELECT i.inhrelid FROM family AS f JOIN pg_inherits AS i ON i.inhparent = f.oid
    )
    SELECT coalesce(array_agg(c.oid ORDER BY c.oid), '{}')
    FROM family AS f JOIN pg_class AS c ON c.oid = f.oid
    WHERE c.relkind IN ('r', 'p', 'f', 'm', 'v', 'c') AND c.relpersistence <> 't');
END
$$;

-- The type below a domain and all domains it is made of, and its typmod; any other type is its own.
CREATE OR REPLACE FUNCTION pgtide.below_domains(of_type oid, OUT base oid, OUT typmod integer)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    next record;
BEGIN
    base := of_type; typmod := -1;
    LOOP
        SELECT t.typbasetype, t.typtypmod INTO next
        FROM pg_type AS t WHERE t.oid = base AND t.typtype = 'd';
        EXIT WHEN NOT FOUND;
        base := next.typbasetype; typmod := next.typtypmod;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION pgtide.describe(relation oid) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
    SELECT jsonb_build_object(
        'name', c.relname, 'kind', c.relkind, 'persistence', c.relpersistence,
        'replica_identity', c.relreplident,
        'primary_key', (
            SELECT coalesce(jsonb_agg(k ORDER BY n), jsonb_build_array())
            FROM pg_index AS x, unnest(x.indkey::smallint[]) WITH ORDINALITY AS u(k, n)
            WHERE x.indrelid = c.oid AND x.indisprimary AND x.indisvalid AND x.indimmediate
              AND n <= x.indnkeyatts),
        'identity_key', (
            SELECT coalesce(jsonb_agg(k ORDER BY n), jsonb_build_array())
            FROM pg_index AS x, unnest(x.indkey::smallint[]) WITH ORDINALITY AS u(k, n)
            WHERE x.indrelid = c.oid AND x.indisreplident AND n <= x.indnkeyatts),
        'root', (
            SELECT jsonb_build_object('oid', r.oid::bigint, 'schema', n.nspname, 'table', r.relname)
            FROM pg_class AS r JOIN pg_namespace AS n ON n.oid = r.relnamespace
            WHERE c.relispartition AND r.oid = pg_partition_root(c.oid)),
        'columns', (
            SELECT coalesce(jsonb_agg(jsonb_build_object(
                'attnum', a.attnum, 'name', a.attname, 'type_oid', a.atttypid::bigint,
                'typmod', a.atttypmod, 'type', format_type(a.atttypid, a.atttypmod),
                'nullable', NOT a.attnotnull, 'default', pg_get_expr(e.adbin, e.adrelid),
                'generated', a.attgenerated, 'identity', a.attidentity,
                'base_oid', coalesce(d.base, 0)::bigint, 'base_typmod', coalesce(d.typmod, -1),
                'element_oid', coalesce(x.element, 0)::bigint,
                'missing', CASE WHEN a.atthasmissing THEN a.attmissingval::text END,
                'domain_default', (
                    SELECT pg_get_expr(t.typdefaultbin, 0) FROM pg_type AS t
                    WHERE t.oid = a.atttypid AND t.typtype = 'd'),
                'collation', (
                    SELECT l.oid::regcollation::text
                    FROM pg_collation AS l JOIN pg_type AS t ON t.oid = a.atttypid
                    WHERE l.oid = a.attcollation AND a.attcollation <> t.typcollation)
                ) ORDER BY a.attnum), jsonb_build_array())
            FROM pg_attribute AS a
            LEFT JOIN pg_attrdef AS e ON e.adrelid = a.attrelid AND e.adnum = a.attnum
            LEFT JOIN LATERAL pgtide.below_domains(a.atttypid) AS d ON d.base <> a.atttypid
            LEFT JOIN LATERAL (
                -- int2vector and its like have elements, but are no type's array type.
                SELECT b.base AS element
                FROM pg_type AS t JOIN pg_type AS i ON i.oid = t.typelem AND i.typarray = t.oid
                CROSS JOIN LATERAL pgtide.below_domains(i.oid) AS b
                WHERE t.oid = coalesce(d.base, a.atttypid) AND i.typdelim = ',') AS x ON true
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
    FROM pg_class AS c
    WHERE c.oid = relation AND c.relkind IN ('r', 'p', 'f', 'm', 'v', 'c'));
END
$$;

-- Whether a publication of ours carries updates or deletes of this table.
CREATE OR REPLACE FUNCTION pgtide.published(relation oid) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    family oid[] := ARRAY(SELECT relid::oid FROM pg_partition_ancestors(relation)) || relation;
    ours oid[] := ARRAY(
        SELECT p.oid FROM pg_publication AS p
        JOIN pgtide.settings AS s ON s.key LIKE 'slot/%' AND s.value -> 'publications' ? p.pubname
        WHERE p.pubupdate OR p.pubdelete);
    schemas oid[] := '{}';
BEGIN
    IF EXISTS (SELECT FROM pg_publication WHERE oid = ANY (ours) AND puballtables)
       OR EXISTS (SELECT FROM pg_publication_rel
                  WHERE prpubid = ANY (ours) AND prrelid = ANY (family)) THEN
        RETURN true;
    END IF;
    IF current_setting('server_version_num')::integer >= 150000 THEN
        schemas := ARRAY(SELECT pnnspid FROM pg_publication_namespace WHERE pnpubid = ANY (ours));
    END IF;
    RETURN EXISTS (SELECT FROM pg_class WHERE oid = ANY (family) AND relnamespace = ANY (schemas));
END
$$;

-- A published table without usable replica identity makes the application's own UPDATE and
-- DELETE fail: give it REPLICA IDENTITY FULL before the transaction that made it so ends.
CREATE OR REPLACE FUNCTION pgtide.ensure_identity(
    relations oid[], OUT changed bigint[], OUT nothing bigint[], OUT failed bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    relation oid;
    setting "char";
    hopeless boolean;
BEGIN
    changed := '{}'; nothing := '{}'; failed := '{}';
    FOR relation, setting, hopeless IN
        SELECT c.oid, c.relreplident, v.virtual
        FROM pg_class AS c
        -- 18: never published, and so refused inside an identity; only a key helps.
        CROSS JOIN LATERAL (SELECT EXISTS (
            SELECT FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attgenerated = 'v'
                AND NOT a.attisdropped) AS virtual) AS v
        WHERE c.oid = ANY (relations) AND c.relkind = 'r' AND c.relpersistence = 'p'
          AND (c.relreplident <> 'f' OR v.virtual) AND pgtide.published(c.oid)
          AND NOT EXISTS (
              SELECT FROM pg_index AS x
              WHERE x.indrelid = c.oid AND x.indisvalid AND x.indimmediate
                AND CASE c.relreplident WHEN 'd' THEN x.indisprimary
                                        WHEN 'i' THEN x.indisreplident ELSE false END)
    LOOP
        IF setting = 'n' THEN
            nothing := nothing || relation::bigint;
            CONTINUE;
        ELSIF hopeless THEN
            failed := failed || relation::bigint;
            CONTINUE;
        END IF;
        BEGIN
            PERFORM set_config('pgtide.guard', pgtide.sign('guard' || pgtide.moment()), true);
            EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', relation::regclass);
            changed := changed || relation::bigint;
        EXCEPTION WHEN OTHERS THEN
            failed := failed || relation::bigint;
        END;
        PERFORM set_config('pgtide.guard', '', true);
    END LOOP;
END
$$;

-- A function in language SQL shows its name on the stack, but not the statement that ran.
CREATE OR REPLACE FUNCTION pgtide.functions_on(stack text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
    SELECT coalesce(jsonb_agg(DISTINCT jsonb_build_object('name', p.proname, 'source', p.prosrc)),
                    jsonb_build_array())
    FROM regexp_matches(stack, 'SQL function "([^"]*)" statement', 'g') AS m
    JOIN pg_proc AS p ON p.proname = m[1]
    JOIN pg_language AS l ON l.oid = p.prolang AND l.lanname = 'sql');
END
$$;

-- Values inside the body (defaults, missing values) are printed with the log's own settings.
CREATE OR REPLACE FUNCTION pgtide.record_command(
    command text, caller_path text, caller_role text, caller_strings text, stack text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' SET standard_conforming_strings = on
SET bytea_output = 'hex' SET extra_float_digits = 3 SET datestyle = 'ISO, YMD'
SET intervalstyle = 'postgres' SET timezone = 'UTC' SET lc_monetary = 'C' AS $$
DECLARE
    facts jsonb;
    scripted boolean;
    counted record;
    listed bigint;
    kept bigint;
    relations oid[];
    objects jsonb;
    identity record;
BEGIN
    IF coalesce(current_setting('pgtide.guard', true), '') <> ''
       AND current_setting('pgtide.guard') = pgtide.sign('guard' || pgtide.moment()) THEN
        RETURN;  -- our own ALTER TABLE in ensure_identity
    END IF;
    scripted := pgtide.in_extension(command, caller_path);
    -- One line: the trigger's own frame, so nothing but the query string called it.
    counted := pgtide.count_command(NOT scripted AND position(chr(10) IN stack) = 0);
    facts := pgtide.facts();
    PERFORM set_config('pgtide.facts', '', true);

    SELECT count(*) INTO listed FROM pg_event_trigger_ddl_commands();
    SELECT count(*) INTO kept FROM pgtide.commands();
    kept := kept + jsonb_array_length(facts -> 'dropped');
    IF scripted OR (kept = 0 AND listed + (facts ->> 'left_out')::bigint > 0) THEN
        RETURN;  -- inside an extension, temporary, or ours
    END IF;

    relations := pgtide.affected(ARRAY(
        SELECT DISTINCT (d ->> 'table')::oid FROM jsonb_array_elements(facts -> 'dropped') AS d
        WHERE d ->> 'table' IS NOT NULL
        UNION
        -- A dropped index does not say whose identity it was.
        SELECT c.oid FROM pg_class AS c
        WHERE c.relreplident = 'i' AND facts -> 'dropped' @> '[{"type": "index"}]'
          AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisreplident)));
    identity := pgtide.ensure_identity(relations);

    SELECT coalesce(jsonb_agg(o.entry || coalesce(pgtide.describe(o.relation), '{}')), '[]')
    INTO objects
    FROM (
        SELECT jsonb_build_object(
                   'type', c.type, 'schema', c.schema, 'identity', c.identity,
                   'oid', c.object::bigint, 'subid', c.subid, 'command_tag', c.tag,
                   'in_extension', false, 'listed', true) AS entry,
               CASE WHEN c.class = 'pg_class'::regclass THEN c.object END AS relation
        FROM pgtide.commands() AS c
        UNION ALL
        SELECT jsonb_build_object(
                   'type', i.type, 'schema', n.nspname, 'identity', i.identity,
                   'oid', r::bigint, 'subid', 0, 'command_tag', command,
                   'in_extension', false, 'listed', false), r
        FROM unnest(relations) AS r
        JOIN pg_class AS y ON y.oid = r
        JOIN pg_namespace AS n ON n.oid = y.relnamespace
        CROSS JOIN LATERAL pg_identify_object('pg_class'::regclass, r, 0) AS i  -- quotes names
        WHERE NOT EXISTS (SELECT FROM pgtide.commands() AS c
                          WHERE c.class = 'pg_class'::regclass AND c.object = r)
    ) AS o;

    PERFORM pgtide.emit(jsonb_build_object(
        'v', 1, 'xid', pg_current_xact_id()::text, 'pid', pg_backend_pid(),
        'ordinal', counted.ordinal,
        'top_ordinal', CASE WHEN position(chr(10) IN stack) = 0 THEN counted.top_ordinal END,
        'tag', command, 'query', current_query(), 'context', stack,
        'statement_at', statement_timestamp(), 'search_path', caller_path,
        'user', CASE WHEN caller_role = 'none' THEN session_user ELSE caller_role END,
        'session_user', session_user, 'functions', pgtide.functions_on(stack),
        'escapes', caller_strings = 'off',
        'objects', objects,
        'dropped', facts -> 'dropped', 'rewrites', facts -> 'rewrites',
        'identity_set', to_jsonb(identity.changed), 'identity_nothing', to_jsonb(identity.nothing),
        'identity_failed', to_jsonb(identity.failed)));
END
$$;

-- Without SET, to see the caller's search_path: every name here is qualified, and no operator
-- is used, because both would be looked up in that path with the owner's rights.
CREATE OR REPLACE FUNCTION pgtide.on_ddl_command_end() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    stack pg_catalog.text;
BEGIN
    GET DIAGNOSTICS stack = PG_CONTEXT;
    PERFORM pgtide.record_command(
        tg_tag, pg_catalog.current_setting('search_path'), pg_catalog.current_setting('role'),
        pg_catalog.current_setting('standard_conforming_strings'), stack);
EXCEPTION WHEN OTHERS THEN
    PERFORM pgtide.emit_unknown(tg_tag, SQLSTATE);
END
$$;

-- The stack is read downstream, in English. Only superusers may set this one.
DO $$
BEGIN
    ALTER FUNCTION pgtide.on_ddl_command_end() SET lc_messages = 'C';
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgtide FROM PUBLIC;

CREATE EVENT TRIGGER _pgtide_sql_drop ON sql_drop EXECUTE FUNCTION pgtide.on_sql_drop();
CREATE EVENT TRIGGER _pgtide_table_rewrite ON table_rewrite
    EXECUTE FUNCTION pgtide.on_table_rewrite();
CREATE EVENT TRIGGER _pgtide_ddl_command_end ON ddl_command_end
    EXECUTE FUNCTION pgtide.on_ddl_command_end();
-- ALWAYS: also under session_replication_role = replica.
ALTER EVENT TRIGGER _pgtide_sql_drop ENABLE ALWAYS;
ALTER EVENT TRIGGER _pgtide_table_rewrite ENABLE ALWAYS;
ALTER EVENT TRIGGER _pgtide_ddl_command_end ENABLE ALWAYS;
