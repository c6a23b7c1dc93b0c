-- Names: spelling, quoting, and columns called like our own.

-- trap 43: a column keeps the spelling with which the view writes it
CREATE TABLE t (Id INT PRIMARY KEY, `Mixed Case` STRING);
CREATE MATERIALIZED VIEW v AS SELECT ID, `mixed case`, id + 1 AS Next FROM T;
-- put t
(1, 'x')
-- apply
-- put t
(1, 'y')
-- apply
-- expect v
(1, 'y', 2)

-- trap 43: dots, reserved words and letters from elsewhere in names
CREATE TABLE `order` (`a.b` INT PRIMARY KEY, `select` STRING, `größe` INT);
CREATE MATERIALIZED VIEW `group` AS SELECT `select`, SUM(`größe`) AS `sum.of`, COUNT(`order`.`a.b`) AS `count` FROM `order` GROUP BY `select`;
-- expect incremental
-- put order
(1, 'p', 10), (2, 'p', 20), (3, NULL, 5)
-- apply
-- delete order
(1)
-- apply
-- expect group
('p', 20, 1), (NULL, 5, 1)

-- trap 43: columns called like hidden ones
CREATE TABLE t (_w INT, _weight INT, __w INT, _c1 INT, k INT);
CREATE MATERIALIZED VIEW v AS SELECT _w, SUM(_weight) AS _weight, MAX(__w) AS __w, COUNT(*) AS _c1 FROM t GROUP BY _w;
CREATE MATERIALIZED VIEW plain AS SELECT _w, _weight, __w, _c1 FROM t;
-- put t
(1, 10, 3, 0, 0), (1, 20, 4, 0, 0)
-- apply
-- expect v
(1, 30, 4, 2)
-- delete t
(1, 20, 4, 0, 0)
-- apply
-- expect v
(1, 10, 3, 1)
-- expect plain
(1, 10, 3, 0)

-- trap 43: columns that the view does not name get the names that Spark gives them
CREATE TABLE t (k INT, amt INT);
CREATE MATERIALIZED VIEW v AS SELECT k, SUM(amt), COUNT(*), k + 1 FROM t GROUP BY k;
CREATE MATERIALIZED VIEW w AS SELECT `sum(amt)` AS s FROM v;
-- put t
(1, 5), (1, 6)
-- apply
-- delete t
(1, 5)
-- apply
-- expect v
(1, 6, 1, 2)
-- expect w
(6)

-- trap 43: names given in front of the query
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v (`key`, total) AS SELECT k, SUM(x) FROM t GROUP BY k;
CREATE MATERIALIZED VIEW w AS SELECT `key` + total AS both FROM v;
-- put t
(1, 5)
-- apply
-- put t
(1, 7)
-- apply
-- expect v
(1, 12)
-- expect w
(13)

-- trap 43: the fields of a struct may have any name
CREATE TABLE t (id INT PRIMARY KEY, s STRUCT<`a b`: INT, `c.d`: ARRAY<STRING>, `ë``f`: INT>);
CREATE MATERIALIZED VIEW v AS SELECT id, s, named_struct('x y', s.`a b`) AS other, max(s) OVER () AS m FROM t;
-- put t
(1, named_struct('a b', 1, 'c.d', array('p'), 'ë`f', 2))
-- apply
-- expect v
(1, named_struct('a b', 1, 'c.d', array('p'), 'ë`f', 2), named_struct('x y', 1), named_struct('a b', 1, 'c.d', array('p'), 'ë`f', 2))

-- trap 43: names said twice, in another case, or not at all are read as Spark reads them
CREATE TABLE s (w INT, q INT);
CREATE TABLE h (w INT);
CREATE MATERIALIZED VIEW twice AS
  SELECT w AS w, q AS q, SUM(q) OVER (PARTITION BY w) AS t FROM s;
CREATE MATERIALIZED VIEW upper_case AS
  SELECT w, Q FROM s WHERE w IN (SELECT w FROM h) OR Q > 3;
CREATE MATERIALIZED VIEW unnamed AS
  SELECT 'large' AS kind, COUNT(*) AS n FROM s WHERE q > 3
  UNION ALL SELECT 'total', COUNT(*) FROM s;
CREATE MATERIALIZED VIEW logs AS SELECT LOG(q) AS e, LOG(2, q) AS two, LN(q) AS n FROM s;
CREATE MATERIALIZED VIEW plain AS VALUES (1), (2);
CREATE MATERIALIZED VIEW listed AS TABLE s;
CREATE MATERIALIZED VIEW renamed AS SELECT q, LOG10(q) AS ten, LOG2(q) AS two,
  DATE_SUB(DATE'2024-01-31', q) AS before, INSTR('abcd', SUBSTR('abcd', q)) AS place,
  CONCAT('<', SPACE(q), '>') AS gap, TO_CHAR(q, '999') AS text, UNIX_DATE(DATE'1970-01-01') AS day,
  TO_UNIX_TIMESTAMP(TIMESTAMP'1970-01-01 00:00:00 UTC') AS second FROM s;
CREATE MATERIALIZED VIEW means AS
  SELECT w, MEAN(q) AS mean, EVERY(q > 1) AS every, TRY_AVG(q) AS average FROM s GROUP BY w;
CREATE MATERIALIZED VIEW mean AS SELECT w, MEAN(q) AS mean FROM s GROUP BY w;
-- expect incremental twice
-- expect incremental upper_case
-- expect incremental unnamed
-- expect incremental logs
-- expect incremental renamed
-- expect incremental means
-- expect incremental mean
-- expect incremental plain
-- expect incremental listed
-- put s
(1, 1), (1, 4), (2, 1)
-- put h
(2)
-- apply
-- expect twice
(1, 1, 5), (1, 4, 5), (2, 1, 1)
-- expect upper_case
(1, 4), (2, 1)
-- expect unnamed
('large', 1), ('total', 3)
-- expect plain
(1), (2)
-- expect mean
(1, 2.5), (2, 1.0)
-- delete h
(2)
-- delete s
(1, 4)
-- apply
-- expect twice
(1, 1, 1), (2, 1, 1)
-- expect upper_case
nothing
-- expect unnamed
('large', 0), ('total', 2)
