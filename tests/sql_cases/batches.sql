-- Batches that hold nothing, and batches that replace everything.

-- trap 18: an empty batch changes no view, not even one that is recomputed
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW total AS SELECT SUM(x) AS s FROM t;
CREATE MATERIALIZED VIEW ranked AS SELECT k, NTILE(2) OVER (ORDER BY k) AS r FROM t;
-- apply
-- expect total
(NULL)
-- put t
(1, 1), (2, 2)
-- apply
-- apply
-- expect changes total
nothing
-- expect changes ranked
nothing
-- expect total
(3)

-- trap 18: a change of one table leaves views of others alone
CREATE TABLE a (x INT);
CREATE TABLE b (x INT);
CREATE MATERIALIZED VIEW va AS SELECT x FROM a ORDER BY x LIMIT 1;
CREATE MATERIALIZED VIEW vb AS SELECT x FROM b ORDER BY x LIMIT 1;
-- put a
(1), (2)
-- put b
(3)
-- apply
-- put b
(0)
-- apply
-- expect changes va
nothing
-- expect changes vb
(3, -1), (0, 1)

-- trap 18: changes that cancel out inside the view are no change of it
CREATE TABLE t (id INT PRIMARY KEY, k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, SUM(x) AS s FROM t GROUP BY k;
-- put t
(1, 1, 10), (2, 1, 20)
-- apply
-- put t
(1, 1, 20), (2, 1, 10)
-- apply
-- expect changes v
nothing

-- trap 19: a batch larger than what was there
CREATE TABLE t (id INT PRIMARY KEY, k INT);
CREATE MATERIALIZED VIEW v AS SELECT k, COUNT(*) AS n FROM t GROUP BY k;
-- put t
(1, 1)
-- apply
-- put t
(1, 2), (2, 2), (3, 2), (4, 3), (5, 3), (6, 3), (7, 3), (8, 1)
-- apply
-- expect v
(2, 3), (3, 4), (1, 1)

-- trap 19: everything goes, and comes back
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, SUM(x) AS s FROM t GROUP BY k;
CREATE MATERIALIZED VIEW total AS SELECT COUNT(*) AS n, SUM(s) AS s FROM v;
-- put t
(1, 1), (1, 2), (2, 4)
-- apply
-- delete t
(1, 1), (1, 2), (2, 4)
-- apply
-- expect v
nothing
-- expect total
(0, NULL)
-- put t
(1, 1), (3, 8)
-- apply
-- expect v
(1, 1), (3, 8)
-- expect total
(2, 9)

-- trap 19: one batch overwrites the whole table
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT DISTINCT k FROM t;
-- put t
(1, 1), (2, 2)
-- apply
-- delete t
(1, 1), (2, 2)
-- put t
(2, 3), (3, 4)
-- apply
-- expect v
(2), (3)
-- expect changes v
(1, -1), (3, 1)
