-- Groups that come and go, HAVING, global aggregates, and what is computed from aggregates.

-- trap 20: a group disappears with its last row and comes back
CREATE TABLE t (k STRING, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY k;
-- expect incremental
-- put t
('a', 0), ('b', 1)
-- apply
-- delete t
('a', 0)
-- apply
-- expect v
('b', 1, 1)
-- expect changes v
('a', 1, 0, -1)
-- put t
('a', 5)
-- apply
-- expect v
('a', 1, 5), ('b', 1, 1)

-- trap 20: a group crosses HAVING in both directions
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, SUM(x) AS s FROM t GROUP BY k HAVING COUNT(*) > 1 AND SUM(x) < 100;
-- expect incremental
-- put t
(1, 1)
-- apply
-- expect v
nothing
-- put t
(1, 2)
-- apply
-- expect v
(1, 3)
-- put t
(1, 97)
-- apply
-- expect v
nothing
-- delete t
(1, 1)
-- apply
-- expect v
(1, 99)
-- delete t
(1, 2)
-- apply
-- expect v
nothing

-- trap 20: HAVING inside a CTE sees whole groups, not changes of them
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS WITH big AS (SELECT k, SUM(x) AS s FROM t GROUP BY k HAVING SUM(x) > 10) SELECT COUNT(*) AS n, SUM(s) AS total FROM big;
-- expect incremental
-- put t
(1, 8), (2, 20)
-- apply
-- expect v
(1, 20)
-- put t
(1, 4)
-- apply
-- expect v
(2, 32)
-- delete t
(2, 20)
-- apply
-- expect v
(1, 12)

-- trap 21: an aggregate without groups has one row, also over nothing
CREATE TABLE t (x INT);
CREATE MATERIALIZED VIEW v AS SELECT COUNT(*) AS n, SUM(x) AS s, MAX(x) AS top FROM t;
CREATE MATERIALIZED VIEW filtered AS SELECT COUNT(*) AS n FROM t WHERE x > 100;
-- expect v
(0, NULL, NULL)
-- expect filtered
(0)
-- put t
(1), (2)
-- apply
-- expect v
(2, 3, 2)
-- expect filtered
(0)
-- delete t
(1), (2)
-- apply
-- expect v
(0, NULL, NULL)
-- expect changes v
(2, 3, 2, -1), (0, NULL, NULL, 1)

-- trap 21: GROUP BY a constant has no row over nothing
CREATE TABLE t (x INT);
CREATE MATERIALIZED VIEW v AS SELECT COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY 'all';
CREATE MATERIALIZED VIEW empty_set AS SELECT COUNT(*) AS n FROM t GROUP BY GROUPING SETS (());
-- expect v
nothing
-- expect empty_set
(0)
-- put t
(1), (2)
-- apply
-- expect v
(2, 3)
-- expect empty_set
(2)
-- delete t
(1), (2)
-- apply
-- expect v
nothing
-- expect empty_set
(0)

-- trap 21: a grouping set that is given twice gives its rows twice
CREATE TABLE s (w STRING, q INT);
CREATE MATERIALIZED VIEW v AS SELECT w, SUM(q) AS n FROM s GROUP BY GROUPING SETS ((w), (w));
CREATE MATERIALIZED VIEW mixed AS SELECT w, COUNT(*) AS n FROM s GROUP BY GROUPING SETS ((w), (), (w), ());
-- expect v
nothing
-- expect mixed
nothing
-- put s
('a', 1), ('a', 2), ('b', 5)
-- apply
-- expect v
('a', 3), ('a', 3), ('b', 5), ('b', 5)
-- expect mixed
('a', 2), ('a', 2), ('b', 1), ('b', 1), (NULL, 3), (NULL, 3)
-- delete s
('b', 5)
-- apply
-- expect v
('a', 3), ('a', 3)
-- expect changes v
('b', 5, -2)
-- expect mixed
('a', 2), ('a', 2), (NULL, 2), (NULL, 2)

-- trap 21: HAVING over an aggregate without groups hides the one row
CREATE TABLE t (x INT);
CREATE MATERIALIZED VIEW v AS SELECT COUNT(*) AS n FROM t HAVING COUNT(*) <> 1;
-- expect v
(0)
-- put t
(7)
-- apply
-- expect v
nothing
-- put t
(7)
-- apply
-- expect v
(2)

-- trap 22: an average is of all values that are not NULL, not of averages
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, AVG(x) AS a FROM t GROUP BY k;
-- expect incremental
-- put t
(1, 1), (1, 2), (1, NULL)
-- apply
-- expect v
(1, 1.5)
-- put t
(1, 9)
-- apply
-- expect v
(1, 4.0)
-- delete t
(1, 1)
-- apply
-- expect v
(1, 5.5)

-- trap 23: minimum and maximum after the extreme is deleted, tied, and gone
CREATE TABLE t (k INT, x INT, s STRING);
CREATE MATERIALIZED VIEW v AS SELECT k, MIN(x) AS low, MAX(x) AS high, MAX(s) AS last FROM t GROUP BY k;
-- expect incremental
-- put t
(1, 1, 'a'), (1, 5, 'b'), (1, 5, 'c'), (1, NULL, NULL)
-- apply
-- expect v
(1, 1, 5, 'c')
-- delete t
(1, 5, 'b')
-- apply
-- expect changes v
nothing
-- delete t
(1, 5, 'c')
-- apply
-- expect v
(1, 1, 1, 'a')
-- delete t
(1, 1, 'a')
-- apply
-- expect v
(1, NULL, NULL, NULL)

-- trap 25: FILTER, CASE inside and around aggregates, one aggregate used twice
CREATE TABLE t (k INT, x INT, flag BOOLEAN);
CREATE MATERIALIZED VIEW v AS
SELECT k, SUM(x) FILTER (WHERE flag) AS yes, COUNT(*) FILTER (WHERE NOT flag) AS no,
    SUM(CASE WHEN flag THEN x ELSE -x END) AS net, SUM(x) + SUM(x) AS twice,
    CASE WHEN SUM(x) > 10 THEN 'big' ELSE 'small' END AS size, SUM(x) / COUNT(*) AS mean
FROM t GROUP BY k;
-- expect incremental
-- put t
(1, 10, true), (1, 2, false), (1, 4, NULL), (2, NULL, true)
-- apply
-- expect v
(1, 10, 1, 4, 32, 'big', 5.333333333333333), (2, NULL, 0, NULL, NULL, 'small', NULL)
-- delete t
(1, 10, true)
-- apply
-- expect v
(1, NULL, 1, -6, 12, 'small', 3.0), (2, NULL, 0, NULL, NULL, 'small', NULL)

-- trap 25: keys that are expressions, aliases and positions
CREATE TABLE t (d DATE, x INT);
CREATE MATERIALIZED VIEW v AS SELECT YEAR(d) AS y, x % 2 AS odd, COUNT(*) AS n FROM t GROUP BY y, 2;
CREATE MATERIALIZED VIEW all_of_them AS SELECT YEAR(d) + 1 AS y, COUNT(*) AS n, MAX(x) + 1 AS m FROM t GROUP BY ALL;
-- put t
(DATE'2024-01-01', 1), (DATE'2024-12-31', 3), (DATE'2025-01-01', 4)
-- apply
-- expect v
(2024, 1, 2), (2025, 0, 1)
-- expect all_of_them
(2025, 2, 4), (2026, 1, 5)
-- delete t
(DATE'2024-12-31', 3)
-- apply
-- expect v
(2024, 1, 1), (2025, 0, 1)
-- expect all_of_them
(2025, 1, 2), (2026, 1, 5)

-- trap 25: an aggregate of a constant
CREATE TABLE t (a INT);
CREATE MATERIALIZED VIEW v AS SELECT a, MAX(1) AS m, MIN(a) AS n, COUNT(DISTINCT 1) AS d, COUNT(DISTINCT a) AS e FROM t GROUP BY a;
-- put t
(1), (1), (NULL)
-- apply
-- expect v
(1, 1, 1, 1, 1), (NULL, 1, NULL, 1, 0)
-- delete t
(1), (NULL)
-- apply
-- expect v
(1, 1, 1, 1, 1)
