ATTACH DATABASE '/tmp/stolen.sqlite' AS stolen
ATTACH 'file:/etc/passwd?mode=ro' AS stolen
DETACH DATABASE main
PRAGMA writable_schema = 1
PRAGMA query_only = OFF
PRAGMA journal_mode = DELETE
PRAGMA user_version = 7
PRAGMA table_info(customer)
VACUUM
VACUUM INTO '/tmp/stolen.sqlite'
REINDEX
REPLACE INTO customer VALUES (1, 'Eve', 'Bonn')
INSERT OR REPLACE INTO customer VALUES (1, 'Eve', 'Bonn')
UPDATE OR IGNORE customer SET name = 'x'
CREATE TRIGGER t AFTER INSERT ON customer BEGIN DELETE FROM customer; END
CREATE VIRTUAL TABLE another USING fts5(a)
EXPLAIN QUERY PLAN SELECT 1
EXPLAIN SELECT 1
SELECT load_extension('/tmp/evil.so')
SELECT "load_extension"('/tmp/evil.so')
SELECT LOAD_EXTENSION('/tmp/evil.so', 'init')
SELECT * FROM customer WHERE load_extension('/tmp/evil.so') IS NULL
WITH x AS (SELECT load_extension('/tmp/evil.so')) SELECT * FROM x
SELECT readfile('/etc/passwd')
SELECT writefile('/tmp/stolen', 'x')
SELECT name, writefile('/tmp/stolen', name) FROM customer
SELECT edit('x')
SELECT eval('DELETE FROM customer')
SELECT fts3_tokenizer('simple', x'00')
SELECT * FROM fsdir('/etc')
SELECT * FROM lsdir('/etc')
SELECT * FROM zipfile('/tmp/a.zip')
SELECT * FROM sqlite_master
SELECT sql FROM main.sqlite_schema
SELECT * FROM sqlite_temp_master
SELECT * FROM pragma_table_info('customer')
SELECT * FROM pragma_database_list
SELECT * FROM pragma_user_version(7)
SELECT * FROM sqlite_dbpage
SELECT * FROM dbstat
INSERT INTO customer VALUES (7, 'Eve', 'Kiel') RETURNING *
SELECT 1 WHERE 'a' IN sqlite_master
SELECT name IN main.sqlite_master FROM customer
SELECT name IN pragma_database_list FROM customer
SELECT * FROM 'sqlite_master'
SELECT AI_GENERATE('x')
SELECT * FROM READ_CSV('/etc/passwd')
