ATTACH '/tmp/stolen.duckdb' AS stolen
ATTACH ':memory:' AS stolen
ATTACH 'https://127.0.0.1:9/x.duckdb' AS stolen
DETACH shop
COPY customer TO '/tmp/stolen.csv'
COPY (SELECT * FROM customer) TO '/tmp/stolen.parquet' (FORMAT parquet)
COPY customer FROM '/etc/passwd'
EXPORT DATABASE '/tmp/stolen'
IMPORT DATABASE '/tmp/stolen'
INSTALL httpfs
FORCE INSTALL httpfs FROM 'http://127.0.0.1:9'
LOAD httpfs
LOAD '/tmp/evil.duckdb_extension'
UPDATE EXTENSIONS
SET enable_external_access = true
SET lock_configuration = false
SET GLOBAL memory_limit = '100GB'
SET SESSION threads = 64
SET VARIABLE a = 1
RESET enable_external_access
RESET VARIABLE a
PRAGMA enable_profiling
PRAGMA database_list
PRAGMA table_info('customer')
PRAGMA version
PRAGMA enable_verification
CHECKPOINT
FORCE CHECKPOINT
VACUUM
VACUUM ANALYZE customer
CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'b')
CREATE PERSISTENT SECRET s (TYPE s3)
DROP SECRET s
CREATE MACRO evil(a) AS a
CREATE TEMP MACRO evil(a) AS a
CREATE OR REPLACE TABLE customer AS SELECT 1 AS a
CREATE SEQUENCE evil
CREATE TYPE evil AS ENUM ('a')
COMMENT ON TABLE customer IS 'x'
INSERT OR REPLACE INTO customer VALUES (1, 'Eve', 'Bonn')
INSERT INTO customer BY NAME SELECT 1 AS customer_id, 'Eve' AS name
UPDATE customer SET name = 'x' FROM "order" WHERE TRUE
TRUNCATE customer
MERGE INTO customer USING customer c ON TRUE WHEN MATCHED THEN DELETE
PIVOT customer ON city
PIVOT customer ON city USING COUNT(*)
UNPIVOT customer ON name INTO NAME k VALUE v
SUMMARIZE customer
SUMMARIZE SELECT * FROM customer
DESCRIBE SELECT * FROM customer
SHOW ALL TABLES
SHOW DATABASES
FROM (SHOW ALL TABLES)
SELECT * FROM (SHOW TABLES)
SELECT * FROM (DESCRIBE customer)
SELECT * FROM (SUMMARIZE customer)
SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM read_csv_auto('/etc/passwd')
FROM read_csv('/etc/passwd')
SELECT * FROM read_text('/etc/passwd')
SELECT * FROM read_blob('/etc/passwd')
SELECT * FROM read_json('/etc/passwd')
SELECT * FROM read_json_objects('/etc/passwd')
SELECT * FROM read_ndjson('/etc/passwd')
SELECT * FROM read_parquet('/etc/passwd')
SELECT * FROM parquet_scan('/etc/passwd')
SELECT * FROM parquet_metadata('/etc/passwd')
SELECT * FROM read_duckdb('/tmp/a.duckdb')
SELECT * FROM sniff_csv('/etc/passwd')
SELECT * FROM glob('/etc/*')
SELECT * FROM '/etc/passwd'
FROM '/etc/passwd'
SELECT * FROM "/etc/passwd"
SELECT * FROM '/tmp/a.csv' AS c
SELECT * FROM 'https://127.0.0.1:9/a.parquet'
SELECT * FROM customer, '/etc/passwd'
SELECT * FROM sqlite_scan('/tmp/a.sqlite', 't')
SELECT * FROM sqlite_attach('/tmp/a.sqlite')
SELECT * FROM postgres_scan('host=127.0.0.1', 'public', 't')
SELECT * FROM iceberg_scan('/tmp/a')
SELECT * FROM delta_scan('/tmp/a')
SELECT * FROM st_read('/etc/passwd')
SELECT * FROM query('SELECT 1')
FROM query('DELETE FROM customer')
SELECT * FROM query_table('customer')
SELECT * FROM query_table(['customer', 'order'])
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))
SELECT json_execute_serialized_sql('{}')
SELECT json_serialize_plan('SELECT 1')
SELECT * FROM duckdb_settings()
SELECT * FROM duckdb_secrets()
SELECT * FROM duckdb_tables()
SELECT * FROM duckdb_columns()
SELECT * FROM duckdb_databases()
SELECT * FROM duckdb_logs()
SELECT * FROM duckdb_functions()
SELECT * FROM duckdb_prepared_statements()
SELECT * FROM duckdb_variables()
SELECT * FROM pragma_table_info('customer')
SELECT * FROM pragma_storage_info('customer')
SELECT * FROM pragma_database_size()
SELECT * FROM pg_catalog.pg_class
SELECT * FROM pg_class
SELECT * FROM sqlite_master
SELECT * FROM system.information_schema.tables
SELECT * FROM shop.main.customer
SELECT current_setting('access_mode')
SELECT getenv('HOME')
SELECT getvariable('a')
SELECT nextval('order_sequence')
SELECT currval('order_sequence')
SELECT setseed(0.5)
SELECT txid_current()
SELECT sleep_ms(10)
SELECT write_log('x')
SELECT * FROM enable_logging()
CALL enable_logging()
CALL force_checkpoint()
SELECT * FROM force_checkpoint()
SELECT * FROM checkpoint()
SELECT * FROM truncate_duckdb_logs()
SELECT * FROM which_secret('s3://a', 's3')
SELECT * FROM pandas_scan(1)
SELECT * FROM arrow_scan(1, 2, 3)
SELECT * FROM python_map_function(1)
SELECT * FROM seq_scan('customer')
SELECT * FROM repeat_row(1, num_rows = 1)
SELECT * FROM test_all_types()
SELECT add_parquet_key('a', 'b')
SELECT main.upper(name) FROM customer
SELECT 'x'.evil()
SELECT list_transform([1], x -> evil(x))
SELECT [evil(x) FOR x IN [1, 2]]
SELECT {'a': evil(1)}
SELECT $1
SELECT $name
SELECT name FROM customer WHERE name = $1
PREPARE p AS SELECT $1
EXPLAIN (FORMAT json) SELECT 1
WITH customer_x AS MATERIALIZED (DELETE FROM customer RETURNING *) SELECT * FROM customer_x
WITH RECURSIVE a AS (SELECT * FROM secret), secret AS (SELECT 1) SELECT * FROM a
WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a
SELECT * FROM customer FOR UPDATE
SELECT * INTO another FROM customer
WITH RECURSIVE secret AS (SELECT * FROM secret) SELECT * FROM secret
WITH RECURSIVE secret AS (SELECT * FROM secret UNION SELECT 1) SELECT * FROM secret
