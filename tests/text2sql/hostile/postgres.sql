WITH gone AS (DELETE FROM customer RETURNING *) SELECT * FROM gone
WITH x AS (INSERT INTO customer VALUES (8, 'Eve', 'Bern') RETURNING *) SELECT * FROM x
WITH x AS (UPDATE customer SET name = 'x' RETURNING *) SELECT * FROM x
WITH a AS (WITH b AS (DELETE FROM customer RETURNING 1) SELECT * FROM b) SELECT * FROM a
SELECT * FROM (WITH b AS (DELETE FROM customer RETURNING 1) SELECT * FROM b) AS c
SELECT * INTO copy_of_customer FROM customer
SELECT name INTO TEMP copy_of_customer FROM customer
SELECT * FROM customer FOR UPDATE
SELECT * FROM customer FOR NO KEY UPDATE
SELECT * FROM customer FOR SHARE
SELECT * FROM customer FOR KEY SHARE SKIP LOCKED
SELECT * FROM (SELECT * FROM customer FOR UPDATE) AS locked
EXPLAIN ANALYZE DELETE FROM customer
EXPLAIN (ANALYZE TRUE) DELETE FROM customer
EXPLAIN SELECT 1
MERGE INTO customer c USING customer d ON c.name = d.name WHEN MATCHED THEN DELETE
TRUNCATE customer
TRUNCATE TABLE customer CASCADE
COPY customer TO '/tmp/stolen'
COPY customer TO PROGRAM 'id'
COPY customer FROM PROGRAM 'id'
COPY (SELECT * FROM customer) TO '/tmp/stolen'
SET ROLE postgres
SET SESSION AUTHORIZATION postgres
SET default_transaction_read_only = off
SET LOCAL statement_timeout = 0
RESET ALL
SHOW ALL
DISCARD ALL
LOCK TABLE customer
LISTEN channel
NOTIFY channel, 'x'
DO $$ BEGIN DELETE FROM customer; END $$
CALL procedure()
PREPARE p AS DELETE FROM customer
DEALLOCATE ALL
DECLARE c CURSOR FOR SELECT 1
GRANT ALL ON customer TO PUBLIC
REVOKE ALL ON customer FROM reader
CREATE ROLE eve SUPERUSER
ALTER SYSTEM SET shared_buffers = '1GB'
CREATE EXTENSION dblink
CREATE FUNCTION f() RETURNS INTEGER AS 'SELECT 1' LANGUAGE sql
COMMENT ON TABLE customer IS 'x'
CLUSTER customer
VACUUM FULL customer
REFRESH MATERIALIZED VIEW big_order
LOAD '/tmp/evil.so'
CHECKPOINT
SELECT pg_read_file('/etc/passwd')
SELECT pg_catalog.pg_read_file('/etc/passwd')
SELECT "pg_read_file"('/etc/passwd')
SELECT pg_read_binary_file('/etc/passwd')
SELECT * FROM pg_ls_dir('/')
SELECT * FROM ROWS FROM (pg_ls_dir('/'))
SELECT * FROM customer, LATERAL pg_ls_dir('/')
SELECT pg_stat_file('/etc/passwd')
SELECT lo_import('/etc/passwd')
SELECT lo_export(1, '/tmp/stolen')
SELECT lo_from_bytea(0, 'x')
SELECT lo_unlink(1)
SELECT dblink('dbname=postgres', 'DELETE FROM customer')
SELECT * FROM dblink('dbname=postgres', 'SELECT 1') AS t(a INTEGER)
SELECT query_to_xml('DELETE FROM customer', true, true, '')
SELECT table_to_xml('pg_authid', true, true, '')
SELECT database_to_xml(true, true, '')
SELECT * FROM ts_stat('SELECT to_tsvector(name) FROM customer')
SELECT set_config('transaction_read_only', 'off', false)
SELECT set_config('role', 'postgres', false)
SELECT current_setting('data_directory')
SELECT pg_sleep(100)
SELECT * FROM customer WHERE pg_sleep(1) IS NULL
SELECT pg_terminate_backend(1)
SELECT pg_cancel_backend(1)
SELECT pg_reload_conf()
SELECT pg_rotate_logfile()
SELECT pg_advisory_lock(1)
SELECT pg_try_advisory_lock(1)
SELECT pg_notify('channel', 'x')
SELECT nextval('order_sequence')
SELECT setval('order_sequence', 1)
SELECT pg_switch_wal()
SELECT pg_create_restore_point('x')
SELECT pg_logical_emit_message(false, 'a', 'b')
SELECT pg_stat_reset()
SELECT pg_export_snapshot()
SELECT txid_current()
SELECT public.anything(1)
SELECT archive.anything(name) FROM customer
SELECT * FROM pg_authid
SELECT rolpassword FROM pg_catalog.pg_authid
SELECT * FROM pg_shadow
SELECT * FROM information_schema.tables
WITH pg_authid AS (SELECT * FROM pg_authid) SELECT * FROM pg_authid
SELECT (WITH pg_authid AS (SELECT 1) SELECT 1), a.* FROM pg_authid AS a
WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a
SELECT * FROM postgres.pg_catalog.pg_authid
SELECT $1
SELECT * FROM customer WHERE name = $1
SELECT * FROM a.postgres.pg_catalog.pg_authid
SELECT '\', pg_read_file('/etc/passwd') --'
SELECT E'\'', pg_read_file('/etc/passwd') --'
SELECT E'\\', pg_read_file('/etc/passwd') --'
SELECT U&"pg\005fread_file"('/etc/passwd')
SELECT 1 OPERATOR(public.+) 1
SELECT * FROM (TABLE pg_authid) AS x
WITH "PG_AUTHID" AS (SELECT 1) SELECT * FROM "pg_authid"
WITH "Secret" AS (SELECT 1) SELECT * FROM "secret"
SELECT AI_GENERATE('x')
SELECT READ_CSV('/etc/passwd')
SELECT * FROM READ_PARQUET('/etc/passwd')
SELECT 'customer'::regclass
SELECT CAST('customer' AS regclass)::text
SELECT CAST('customer' AS pg_catalog.regclass)
SELECT CAST('customer' AS "regclass")
SELECT regclass 'customer'
SELECT CAST(ARRAY['customer'] AS regclass[])
SELECT 'postgres'::regrole, 'public'::regnamespace
SELECT 'pg_read_file'::regproc
SELECT CAST('pg_read_file(text)' AS regprocedure)
SELECT 'customer'::regtype
SELECT to_regclass('customer')
SELECT to_regtype('customer'), to_regrole('postgres')
SELECT pg_typeof(1) = 'customer'
SELECT COALESCE(pg_typeof(1), 'customer')
SELECT * FROM jsonb_to_recordset('[{"a": "customer"}]') AS t(a regclass)
SELECT c.no_column FROM customer AS c
SELECT (c).no_column FROM customer AS c
SELECT (c.name).no_column FROM customer AS c
