"""Scripts for the real triggers, and the text of each command that must come out."""

from __future__ import annotations

SETUP = """
create schema app; create schema other; create role nobody_here nologin;
create table t (id int primary key, a text);
create table app.t (id int primary key); create table app.moves();
create table pt (id int) partition by list (id); create table leaf (id int);
create unlogged table slow (id int primary key);
create table fires (id int primary key);
create function by_trigger() returns trigger language plpgsql as
  $$ begin create table if not exists made_by_trigger(); return new; end $$;
create trigger f before insert on fires for each row execute function by_trigger();
create function inner_ddl(name text) returns int language plpgsql as
  $$ begin execute format('create table %I ("a""b" text default ''"'')', name); return 1; end $$;
create function outer_ddl() returns void language plpgsql as
  $$ declare x int; begin x := inner_ddl('deep'); perform inner_ddl('Deeper one'); end $$;
create function sql_ddl() returns void language sql as
  $$ create table by_sql_1(); alter table by_sql_1 add x int; alter table by_sql_1 add y int $$;
create procedure proc() language plpgsql as
  $$ begin create table proc_1(); commit; create table proc_2(); end $$;
"""

# Script and the texts that must come out, in order. "{}" stands for the whole script.
SCRIPTS: list[tuple[str, list[str]]] = [
    ("create table n1 (id serial primary key)", ["{}"]),
    (
        "create table n2(); create table n3();\n-- é ; comment\n",
        ["create table n2()", "create table n3()"],
    ),
    (
        "alter table t add b int; alter table t add c int; alter table t drop b",
        ["alter table t add b int", "alter table t add c int", "alter table t drop b"],
    ),
    (
        "alter table t add b int; update t set b = 1; alter table t alter b set default 1;"
        " insert into fires values (1); alter table t alter b set default 2",
        [
            "alter table t add b int",
            "alter table t alter b set default 1",
            "create table if not exists made_by_trigger()",
            "alter table t alter b set default 2",
        ],
    ),
    (
        "alter table t add d int; select outer_ddl(); alter table t add e int",
        [
            "alter table t add d int",
            'create table deep ("a""b" text default \'"\')',
            'create table "Deeper one" ("a""b" text default \'"\')',
            "alter table t add e int",
        ],
    ),
    (
        "select sql_ddl()",
        [
            "create table by_sql_1()",
            "alter table by_sql_1 add x int",
            "alter table by_sql_1 add y int",
        ],
    ),
    ("call proc()", ["create table proc_1()", "create table proc_2()"]),
    (
        "do $$ begin create table do_1(); execute 'create table do_2(); create"
        " table do_3();'; end $$",
        ["create table do_1()", "create table do_2()", "create table do_3()"],
    ),
    (
        "do $$ begin\n  begin create table lost(); raise exception 'x';\n"
        '  exception when others then create table kept (\n"q" int); end; end $$',
        ['create table kept (\n"q" int)'],
    ),
    (
        "set search_path = other; create table t(); set search_path = app; alter table t add x int",
        ["create table t()", "alter table t add x int"],
    ),
    (
        "create table if not exists t(); create table if not exists n4(); drop table if exists nix",
        [
            "create table if not exists t()",
            "create table if not exists n4()",
            "drop table if exists nix",
        ],
    ),
    ("create schema s1 create table st(x int primary key) create view sv as select 1", ["{}"]),
    (
        'alter table t rename to t2; alter table t2 rename a to "Ä"; alter table t2 rename to t',
        [
            "alter table t rename to t2",
            'alter table t2 rename a to "Ä"',
            "alter table t2 rename to t",
        ],
    ),
    (
        "alter schema app rename to app2; alter table app2.moves set schema other",
        ["alter schema app rename to app2", "alter table app2.moves set schema other"],
    ),
    (
        "create table x1(); drop table x1; create table x1(y int)",
        ["create table x1()", "drop table x1", "create table x1(y int)"],
    ),
    (
        "create table m1(); create table m2(); drop table m1, m2",
        ["create table m1()", "create table m2()", "drop table m1, m2"],
    ),
    (
        "begin; alter table t add f int; rollback; begin; alter table t add g int; commit",
        ["alter table t add g int"],
    ),
    (
        "begin; alter table t add h int; commit; alter table t add i int",
        ["alter table t add h int", "alter table t add i int"],
    ),
    (
        "create temp table tmp(); alter table tmp add x int; alter table t add x int",
        ["alter table t add x int"],
    ),
    (
        "alter table pt attach partition leaf for values in (1); alter table pt"
        " detach partition leaf",
        [
            "alter table pt attach partition leaf for values in (1)",
            "alter table pt detach partition leaf",
        ],
    ),
    ("alter table slow set logged", ["{}"]),
    (
        "alter table t add r float default random(); alter table t alter id type bigint",
        ["alter table t add r float default random()", "alter table t alter id type bigint"],
    ),
    (
        "select 1 as x into si; create table ctas as select 2 as y; create materialized view mv as"
        " select 3 as z; refresh materialized view mv",
        [
            "select 1 as x into si",
            "create table ctas as select 2 as y",
            "create materialized view mv as select 3 as z",
            "refresh materialized view mv",
        ],
    ),
    (
        "grant select on t to public; revoke select on t from public; grant"
        " nobody_here to current_user;"
        " comment on table t is 'a;b'; comment on column t.id is 'ü'",
        [
            "grant select on t to public",
            "revoke select on t from public",
            "comment on table t is 'a;b'",
            "comment on column t.id is 'ü'",
        ],
    ),
    (
        "create type en as enum ('a'); alter type en rename value 'a' to 'b';"
        " create domain dom as int;"
        " create type co as (a int); alter type co add attribute b int; drop type en, co",
        [
            "create type en as enum ('a')",
            "alter type en rename value 'a' to 'b'",
            "create domain dom as int",
            "create type co as (a int)",
            "alter type co add attribute b int",
            "drop type en, co",
        ],
    ),
    (
        "create index i1 on t(id); create index on t(c); alter index i1 rename"
        ' to "I 2"; drop index "I 2"',
        [
            "create index i1 on t(id)",
            "create index on t(c)",
            'alter index i1 rename to "I 2"',
            'drop index "I 2"',
        ],
    ),
    (
        "create view v as select 1 as a; create or replace view v as select 1 as a, 2 as b;"
        " alter view v rename to w; drop view w",
        [
            "create view v as select 1 as a",
            "create or replace view v as select 1 as a, 2 as b",
            "alter view v rename to w",
            "drop view w",
        ],
    ),
    (
        "create sequence q; alter sequence q restart; alter table q rename to q2; drop sequence q2",
        [
            "create sequence q",
            "alter sequence q restart",
            "alter table q rename to q2",
            "drop sequence q2",
        ],
    ),
    (
        "create policy p on t; alter policy p on t rename to p2; drop policy p2 on t;"
        " create rule r as on insert to t do also (select 1; select 2); drop rule r on t",
        [
            "create policy p on t",
            "alter policy p on t rename to p2",
            "drop policy p2 on t",
            "create rule r as on insert to t do also (select 1; select 2)",
            "drop rule r on t",
        ],
    ),
    (
        "create function fu(a int) returns int begin atomic select case when a > 0 then 1 end;"
        " select 2; end; alter function fu(int) stable; drop function fu(int)",
        [
            "create function fu(a int) returns int begin atomic select case when a > 0 then 1 end;"
            " select 2; end",
            "alter function fu(int) stable",
            "drop function fu(int)",
        ],
    ),
    (
        "alter table t add constraint k check (id > 0); alter table t rename constraint k to k2;"
        " comment on constraint k2 on t is 'x'; alter table t drop constraint k2",
        [
            "alter table t add constraint k check (id > 0)",
            "alter table t rename constraint k to k2",
            "comment on constraint k2 on t is 'x'",
            "alter table t drop constraint k2",
        ],
    ),
    (
        "create publication pub for table t; alter publication pub set (publish = 'insert');"
        " alter publication pub rename to pub2; drop publication pub2",
        [
            "create publication pub for table t",
            "alter publication pub set (publish = 'insert')",
            "alter publication pub rename to pub2",
            "drop publication pub2",
        ],
    ),
    (
        "create statistics st on id, c from t; alter statistics st rename to"
        " st2; drop statistics st2;"
        " alter default privileges grant select on tables to public",
        [
            "create statistics st on id, c from t",
            "alter statistics st rename to st2",
            "drop statistics st2",
            "alter default privileges grant select on tables to public",
        ],
    ),
    (
        "create aggregate ag(int) (sfunc = int4pl, stype = int); alter"
        " aggregate ag(int) rename to ag2;"
        " create operator === (leftarg = int, rightarg = int, function = int4eq);"
        ' drop operator === (int, int); create collation co2 from "C"; drop collation co2',
        [
            "create aggregate ag(int) (sfunc = int4pl, stype = int)",
            "alter aggregate ag(int) rename to ag2",
            "create operator === (leftarg = int, rightarg = int, function = int4eq)",
            "drop operator === (int, int)",
            'create collation co2 from "C"',
            "drop collation co2",
        ],
    ),
    (
        "create foreign data wrapper fdw; create server srv foreign data wrapper fdw;"
        " create user mapping for current_user server srv; create foreign table"
        " ft (a int) server srv;"
        " alter foreign table ft add b int; drop foreign table ft; drop server srv cascade",
        [
            "create foreign data wrapper fdw",
            "create server srv foreign data wrapper fdw",
            "create user mapping for current_user server srv",
            "create foreign table ft (a int) server srv",
            "alter foreign table ft add b int",
            "drop foreign table ft",
            "drop server srv cascade",
        ],
    ),
    (
        "set session_replication_role = replica; create table rep(); alter table t add z int",
        ["create table rep()", "alter table t add z int"],
    ),
    (
        f"create table {'long' * 20} (x int); alter table {'long' * 20} add y int",
        [f"create table {'long' * 20} (x int)", f"alter table {'long' * 20} add y int"],
    ),
]
