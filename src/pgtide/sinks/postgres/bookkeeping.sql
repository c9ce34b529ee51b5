-- What pgtide keeps in a target. Each statement may run again.
CREATE SCHEMA IF NOT EXISTS pgtide;

-- Everything up to and including this position is in the target. Written in the same
-- transaction as the rows.
CREATE TABLE IF NOT EXISTS pgtide.progress (
    pipeline text PRIMARY KEY,
    lsn pg_lsn NOT NULL,
    seq bigint NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    log text NOT NULL -- which log it is a position of
);

-- Rows that were not as the source's changes said.
CREATE TABLE IF NOT EXISTS pgtide.conflicts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline text NOT NULL,
    lsn pg_lsn NOT NULL,
    seq bigint NOT NULL,
    "schema" text NOT NULL,
    "table" text NOT NULL,
    kind text NOT NULL, -- insert_exists, update_missing, delete_missing
    resolution text NOT NULL, -- apply, keep
    key jsonb NOT NULL, -- names and texts of the key columns
    noted_at timestamptz NOT NULL DEFAULT now()
);

-- Triggers and rules that were switched off, since what they do comes from the source.
CREATE TABLE IF NOT EXISTS pgtide.disabled (
    relation oid NOT NULL,
    kind text NOT NULL, -- TRIGGER, RULE
    name text NOT NULL,
    PRIMARY KEY (relation, kind, name)
);

-- DDL that somebody decided to leave out: pgtide skip.
CREATE TABLE IF NOT EXISTS pgtide.skipped (
    pipeline text NOT NULL,
    lsn pg_lsn NOT NULL,
    seq bigint NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, lsn, seq)
);

-- Tables that were empty when rows of a snapshot began to be copied into them. Tasks of an epoch
-- that is over copy nothing any more.
CREATE TABLE IF NOT EXISTS pgtide.loads (
    pipeline text NOT NULL,
    lsn pg_lsn NOT NULL,
    "schema" text NOT NULL,
    "table" text NOT NULL,
    epoch bigint NOT NULL,
    PRIMARY KEY (pipeline, lsn, "schema", "table")
);

-- Rows of a snapshot that are there already, in stretches of positions without gaps. Written in
-- the same transaction as the rows, by the task that copied them.
CREATE TABLE IF NOT EXISTS pgtide.loaded (
    pipeline text NOT NULL,
    lsn pg_lsn NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    PRIMARY KEY (pipeline, lsn, first_seq)
);

-- What is to be made once the rows of the snapshot are there: indexes, constraints, triggers.
CREATE TABLE IF NOT EXISTS pgtide.after_rows (
    pipeline text NOT NULL,
    ordinal int NOT NULL,
    statement text NOT NULL,
    PRIMARY KEY (pipeline, ordinal)
);

-- DDL of the source that was not replayed here, and why.
CREATE TABLE IF NOT EXISTS pgtide.left_out (
    pipeline text NOT NULL,
    lsn pg_lsn NOT NULL,
    seq bigint NOT NULL,
    tag text NOT NULL,
    reason text NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, lsn, seq)
);

-- Ranges of a table's keys that are ahead of the table, up to and including this position. Written
-- in the same transaction as their rows, and gone when the table is there too.
CREATE TABLE IF NOT EXISTS pgtide.ranges (
    pipeline text NOT NULL,
    "table" text NOT NULL, -- of the source, with its schema
    range int NOT NULL,
    lsn pg_lsn NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (pipeline, "table", range)
);

-- With which tables a pipeline has last written to the target, as patterns.
CREATE TABLE IF NOT EXISTS pgtide.selections (
    pipeline text PRIMARY KEY,
    tables text[] NOT NULL
);

-- Tables that are parked: they have everything before this position. Written in the transactions
-- that pass over their rows, and in those that bring them back.
CREATE TABLE IF NOT EXISTS pgtide.parked (
    pipeline text NOT NULL,
    "table" text NOT NULL, -- of the source, with its schema
    lsn pg_lsn NOT NULL,
    seq bigint NOT NULL,
    message text NOT NULL,
    detail text NOT NULL,
    hint text NOT NULL,
    since timestamptz NOT NULL,
    PRIMARY KEY (pipeline, "table")
);

-- Tables that are not selected any more: they have everything before this position, if they are
-- still what they were then.
CREATE TABLE IF NOT EXISTS pgtide.unselected (
    pipeline text NOT NULL,
    "table" text NOT NULL, -- of the source, with its schema
    lsn pg_lsn NOT NULL,
    seq bigint NOT NULL,
    relation oid, -- of the target; NULL: there was none
    has_rows boolean NOT NULL,
    PRIMARY KEY (pipeline, "table")
);

-- Events that are applied in order, each before what deferred constraints have to look at because of
-- it: the trigger says which one they have come to. Empty but inside of a transaction.
CREATE SEQUENCE IF NOT EXISTS pgtide.checked_lsn MINVALUE 0;
CREATE SEQUENCE IF NOT EXISTS pgtide.checked_seq MINVALUE 0;
CREATE UNLOGGED TABLE IF NOT EXISTS pgtide.checks (lsn bigint NOT NULL, seq bigint NOT NULL);
CREATE OR REPLACE FUNCTION pgtide.checked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM setval('pgtide.checked_lsn', NEW.lsn), setval('pgtide.checked_seq', NEW.seq);
    RETURN NULL;
END
$$;
DROP TRIGGER IF EXISTS checked ON pgtide.checks;
CREATE CONSTRAINT TRIGGER checked AFTER INSERT ON pgtide.checks
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pgtide.checked();
