INSERT INTO customer VALUES (4, 'Eve', 'Paris')
INSERT INTO customer SELECT * FROM customer
UPDATE customer SET name = 'x'
DELETE FROM customer
DELETE FROM customer WHERE 1 = 1
DROP TABLE customer
DROP TABLE IF EXISTS customer
DROP VIEW big_order
CREATE TABLE another (a INTEGER)
CREATE TABLE another AS SELECT * FROM customer
CREATE VIEW another AS SELECT 1
CREATE INDEX another ON customer (name)
CREATE TEMP TABLE another (a INTEGER)
ALTER TABLE customer ADD COLUMN a INTEGER
ALTER TABLE customer RENAME TO former
WITH x AS (SELECT 1) INSERT INTO customer VALUES (5, 'Eve', 'Rome')
WITH x AS (SELECT 1) UPDATE customer SET name = 'x'
WITH x AS (SELECT 1) DELETE FROM customer
BEGIN
BEGIN IMMEDIATE
COMMIT
ROLLBACK
SAVEPOINT a
RELEASE a
END
START TRANSACTION
COMMIT; DELETE FROM customer
SELECT 1; DROP TABLE customer
SELECT 1;DROP TABLE customer;
SELECT 1; DELETE FROM customer --
SELECT 1; /* innocent */ UPDATE customer SET name = 'x'
SELECT 1; SELECT 2
SELECT 1;; INSERT INTO customer VALUES (6, 'Eve', 'Oslo')
SELECT 1; COMMIT; DELETE FROM customer
SELECT 1; ROLLBACK; DELETE FROM customer
SELECT 1; VACUUM
SELECT * FROM customer; DROP TABLE customer
SELECT * FROM customer;DROP TABLE customer;
SELECT * FROM customer; DELETE FROM customer --
SELECT * FROM customer; /* innocent */ UPDATE customer SET name = 'x'
SELECT * FROM customer; SELECT 2
SELECT * FROM customer;; INSERT INTO customer VALUES (6, 'Eve', 'Oslo')
SELECT * FROM customer; COMMIT; DELETE FROM customer
SELECT * FROM customer; ROLLBACK; DELETE FROM customer
SELECT * FROM customer; VACUUM
WITH a AS (SELECT 1) SELECT * FROM a; DROP TABLE customer
WITH a AS (SELECT 1) SELECT * FROM a;DROP TABLE customer;
WITH a AS (SELECT 1) SELECT * FROM a; DELETE FROM customer --
WITH a AS (SELECT 1) SELECT * FROM a; /* innocent */ UPDATE customer SET name = 'x'
WITH a AS (SELECT 1) SELECT * FROM a; SELECT 2
WITH a AS (SELECT 1) SELECT * FROM a;; INSERT INTO customer VALUES (6, 'Eve', 'Oslo')
WITH a AS (SELECT 1) SELECT * FROM a; COMMIT; DELETE FROM customer
WITH a AS (SELECT 1) SELECT * FROM a; ROLLBACK; DELETE FROM customer
WITH a AS (SELECT 1) SELECT * FROM a; VACUUM
(DELETE FROM customer)
SELECT (DELETE FROM customer)
SELECT * FROM (DELETE FROM customer) AS x
SELECT * FROM (UPDATE customer SET name = 'x' RETURNING name) AS x
SELECT 1 WHERE EXISTS (DELETE FROM customer RETURNING 1)
SELECT 1 UNION DELETE FROM customer
SELECT 1 UNION ALL INSERT INTO customer VALUES (9, 'Eve', 'Linz')
VALUES (1); DROP TABLE customer
(SELECT 1); DROP TABLE customer
/* SELECT 1 */ DROP TABLE customer
/* a */ DELETE /* b */ FROM customer
SELECT 1 /* ; */ ; /* ; */ DROP TABLE customer
SELECT ';' ; DROP TABLE customer
SELECT 1 AS "a;b"; DROP TABLE customer
WITH x AS (SELECT 1), y AS (DELETE FROM customer RETURNING *) SELECT * FROM x
WITH x AS (DELETE FROM customer RETURNING *) SELECT 1
WITH x AS (DROP TABLE customer) SELECT 1
WITH x AS (SELECT 1) SELECT * FROM x; COMMIT
DELETE FROM customer RETURNING *
INSERT INTO customer SELECT * FROM customer WHERE FALSE RETURNING *
UPDATE customer SET name = name RETURNING *
SELECT evil(1)
SELECT "evil"(1)
SELECT * FROM evil(1)
SELECT * FROM customer, evil(1) AS e
SELECT * FROM customer CROSS JOIN LATERAL evil(customer_id) AS e
SELECT * FROM customer WHERE evil(name) = 1
SELECT * FROM customer ORDER BY evil(name)
SELECT COUNT(*) FROM customer GROUP BY evil(name)
SELECT COUNT(*) FROM customer GROUP BY city HAVING evil(city) = 1
SELECT * FROM customer a JOIN customer b ON evil(a.name) = 1
SELECT name FROM customer LIMIT evil(1)
SELECT CASE WHEN evil(1) = 1 THEN 1 ELSE 2 END
SELECT COALESCE(NULL, evil(1))
SELECT COUNT(evil(name)) FROM customer
SELECT SUM(evil(1)) OVER (PARTITION BY city) FROM customer
SELECT SUM(customer_id) OVER (ORDER BY evil(name)) FROM customer
SELECT name FROM customer WHERE city IN (SELECT evil(city) FROM customer)
SELECT name FROM customer UNION SELECT evil(name) FROM customer
WITH x AS (SELECT evil(1)) SELECT * FROM x
SELECT CAST(evil(1) AS TEXT)
SELECT name FROM customer WHERE name BETWEEN 'a' AND evil('z')
SELECT other.evil(1)
SELECT * FROM no_such_table
SELECT * FROM nowhere.customer
SELECT * FROM nowhere.archive.customer
SELECT (SELECT 1 FROM no_such_table)
SELECT name FROM customer WHERE EXISTS (SELECT 1 FROM no_such_table)
SELECT name FROM customer UNION SELECT name FROM no_such_table
WITH x AS (SELECT * FROM no_such_table) SELECT * FROM customer
WITH "ſecret" AS (SELECT 1) SELECT * FROM "secret"
SELECT * FROM INFORMATION_SCHEMA.TABLES
SELECT table_name FROM information_schema.columns
GRANT ALL ON customer TO eve
REVOKE ALL ON customer FROM eve
SET something = 1
USE other
CALL evil()
PREPARE p AS SELECT 1
PREPARE p FROM 'DELETE FROM customer'
EXECUTE p
EXECUTE IMMEDIATE 'DELETE FROM customer'
KILL 1
SHOW TABLES
DESCRIBE customer
EXPLAIN DELETE FROM customer
EXPLAIN ANALYZE SELECT 1
ANALYZE
DROP SCHEMA archive CASCADE
CREATE SCHEMA evil
CREATE TEMPORARY TABLE another AS SELECT * FROM customer
SELECT ?
SELECT name FROM customer WHERE name = :name
