-- ROLLUP and its kin, and aggregates over other operators.

-- trap 29: NULL from ROLLUP is not NULL in the data
CREATE TABLE t (a INT, b STRING, x INT);
CREATE MATERIALIZED VIEW v AS SELECT a, b, GROUPING_ID() AS g, SUM(x) AS s FROM t GROUP BY ROLLUP (a, b);
-- put t
(1, 'p', 1), (1, NULL, 2), (NULL, NULL, 4)
-- apply
-- expect v
(1, 'p', 0, 1), (1, NULL, 0, 2), (NULL, NULL, 0, 4), (1, NULL, 1, 3), (NULL, NULL, 1, 4), (NULL, NULL, 3, 7)
-- delete t
(1, NULL, 2), (NULL, NULL, 4)
-- apply
-- expect v
(1, 'p', 0, 1), (1, NULL, 1, 1), (NULL, NULL, 3, 1)

-- trap 29: CUBE without GROUPING_ID still tells its groups apart
CREATE TABLE t (a INT, b INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT a, b, COUNT(*) AS n FROM t GROUP BY CUBE (a, b);
-- put t
(1, NULL, 1), (NULL, 2, 1)
-- apply
-- expect v
(1, NULL, 1), (NULL, 2, 1), (1, NULL, 1), (NULL, NULL, 1), (NULL, NULL, 1), (NULL, 2, 1), (NULL, NULL, 2)
-- delete t
(NULL, 2, 1)
-- apply
-- expect v
(1, NULL, 1), (1, NULL, 1), (NULL, NULL, 1), (NULL, NULL, 1)

-- trap 29: the grand total over nothing
CREATE TABLE t (a INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT a, COUNT(*) AS n FROM t GROUP BY ROLLUP (a);
CREATE MATERIALIZED VIEW sets AS SELECT a, COUNT(*) AS n, GROUPING(a) AS g FROM t GROUP BY GROUPING SETS ((a), ());
-- put t
(1, 1)
-- apply
-- expect v
(1, 1), (NULL, 1)
-- delete t
(1, 1)
-- apply
-- Spark's answer, whichever it is: compared with its recomputation after every batch.
-- put t
(2, 1), (2, 1)
-- apply
-- expect v
(2, 2), (NULL, 2)
-- expect sets
(2, 2, 0), (NULL, 2, 1)

-- trap 30: an aggregate of an aggregate
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT n, COUNT(*) AS groups, MAX(s) AS top FROM (SELECT k, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY k) GROUP BY n;
-- expect incremental
-- put t
(1, 10), (1, 20), (2, 5), (3, 7)
-- apply
-- expect v
(2, 1, 30), (1, 2, 7)
-- put t
(3, 100)
-- delete t
(1, 10)
-- apply
-- expect v
(2, 1, 107), (1, 2, 20)

-- trap 30: DISTINCT below an aggregate
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, SUM(x) AS s FROM (SELECT DISTINCT k, x FROM t) GROUP BY k;
-- expect incremental
-- put t
(1, 5), (1, 5), (1, 6)
-- apply
-- expect v
(1, 11)
-- delete t
(1, 5)
-- apply
-- expect v
(1, 11)
-- delete t
(1, 5)
-- apply
-- expect v
(1, 6)

-- trap 30: an aggregate below a join, which sees the old row go and the new one come
CREATE TABLE orders (id INT PRIMARY KEY, customer INT, amount INT);
CREATE TABLE levels (floor INT PRIMARY KEY, name STRING);
CREATE MATERIALIZED VIEW v AS SELECT c.customer, l.name FROM (SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer) c JOIN levels l ON c.total = l.floor;
-- expect incremental
-- put levels
(10, 'small'), (20, 'large')
-- put orders
(1, 1, 10), (2, 2, 20)
-- apply
-- expect v
(1, 'small'), (2, 'large')
-- put orders
(3, 1, 10)
-- put levels
(20, 'huge')
-- apply
-- expect v
(1, 'huge'), (2, 'huge')
-- delete orders
(2)
-- delete levels
(10)
-- apply
-- expect v
(1, 'huge')

-- trap 29: two names of one column, of which a grouping set has only one
CREATE TABLE t (a INT);
CREATE MATERIALIZED VIEW v AS SELECT x, y, COUNT(*) AS n, GROUPING_ID() AS g FROM (SELECT a AS x, a AS y FROM t) GROUP BY x, y GROUPING SETS ((x, y), (x), ());
-- expect recompute UNSUPPORTED_OPERATOR
-- put t
(1), (1), (2)
-- apply
-- expect v
(1, 1, 2, 0), (2, 2, 1, 0), (1, NULL, 2, 1), (2, NULL, 1, 1), (NULL, NULL, 3, 3)

-- trap 29: several empty grouping sets are a row each, and none over nothing
CREATE TABLE t (a INT);
CREATE MATERIALIZED VIEW two AS SELECT count(*) AS n FROM t GROUP BY GROUPING SETS ((), ());
CREATE MATERIALIZED VIEW three AS
  SELECT sum(a) AS s FROM t GROUP BY GROUPING SETS ((), (), ()) HAVING count(*) > 1;
CREATE MATERIALIZED VIEW one AS SELECT count(*) AS n FROM t GROUP BY GROUPING SETS (());
-- expect incremental two
-- expect incremental three
-- expect two
nothing
-- expect three
nothing
-- expect one
(0)
-- put t
(1), (2)
-- apply
-- expect two
(2), (2)
-- expect three
(3), (3), (3)
-- delete t
(1)
-- apply
-- expect two
(1), (1)
-- expect three
nothing
-- delete t
(2)
-- apply
-- expect two
nothing
-- expect one
(0)

-- trap 30: two groupings, of which one compares with a column and the other with a number
CREATE TABLE t (a INT, b DECIMAL(3,1));
CREATE MATERIALIZED VIEW v AS
SELECT x.b, x.n AS above_b, y.n AS above_number
FROM (SELECT b, COUNT(*) AS n FROM t WHERE a > b GROUP BY b) x
JOIN (SELECT b, COUNT(*) AS n FROM t WHERE a > 0.1 GROUP BY b) y ON x.b = y.b;
-- expect incremental
-- put t
(1, 0.5), (1, 2.0), (3, 2.0)
-- apply
-- expect v
(0.5, 1, 1), (2.0, 1, 2)
