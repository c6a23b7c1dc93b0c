-- Views on views, and what a change must not do to their sources.

-- trap 47: a diamond sees one state of its source
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW base AS SELECT k, SUM(x) AS s FROM t GROUP BY k;
CREATE MATERIALIZED VIEW low AS SELECT k, s FROM base WHERE s < 10;
CREATE MATERIALIZED VIEW high AS SELECT k, s FROM base WHERE s >= 10;
CREATE MATERIALIZED VIEW v AS SELECT k, s, 'low' AS part FROM low UNION ALL SELECT k, s, 'high' FROM high;
CREATE MATERIALIZED VIEW checked AS SELECT b.k, v.part FROM base b LEFT JOIN v ON b.k = v.k AND b.s = v.s;
-- expect incremental
-- put t
(1, 5), (2, 50)
-- apply
-- expect checked
(1, 'low'), (2, 'high')
-- delete t
(2, 50)
-- put t
(1, 5), (2, 1)
-- apply
-- expect v
(1, 10, 'high'), (2, 1, 'low')
-- expect checked
(1, 'high'), (2, 'low')

-- trap 47: a view that is recomputed hands its difference on
CREATE TABLE t (id INT PRIMARY KEY, x INT);
CREATE MATERIALIZED VIEW ranked AS SELECT id, x, COUNT(*) OVER (ORDER BY x, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS n FROM t;
CREATE MATERIALIZED VIEW v AS SELECT n % 2 AS odd, SUM(x) AS s FROM ranked GROUP BY n % 2;
-- expect recompute WINDOW_WITHOUT_PARTITION ranked
-- expect incremental v
-- put t
(1, 10), (2, 20), (3, 30)
-- apply
-- expect v
(1, 40), (0, 20)
-- put t
(4, 25)
-- apply
-- expect v
(1, 35), (0, 50)
-- expect changes ranked
(3, 30, 3, -1), (4, 25, 3, 1), (3, 30, 4, 1)

-- trap 47: a plain view between materialized ones
CREATE TABLE t (k INT, x INT);
CREATE VIEW positive AS SELECT k, x FROM t WHERE x > 0;
CREATE MATERIALIZED VIEW sums AS SELECT k, SUM(x) AS s FROM positive GROUP BY k;
CREATE VIEW big AS SELECT k FROM sums WHERE s > 10;
CREATE MATERIALIZED VIEW v AS SELECT COUNT(*) AS n FROM big;
-- expect incremental
-- put t
(1, 11), (1, -5), (2, 3)
-- apply
-- expect v
(1)
-- put t
(2, 8)
-- apply
-- expect v
(2)
-- delete t
(1, 11)
-- apply
-- expect v
(1)

-- trap 46: an error in one view undoes the batch in all of them
CREATE TABLE t (id INT PRIMARY KEY, x INT);
CREATE MATERIALIZED VIEW fine AS SELECT COUNT(*) AS n, SUM(x) AS s FROM t;
CREATE MATERIALIZED VIEW above AS SELECT n + 1 AS n FROM fine;
CREATE MATERIALIZED VIEW fragile AS SELECT id, 100 / x AS share FROM t;
-- put t
(1, 4)
-- apply
-- put t
(2, 0), (3, 5)
-- apply
-- expect error: DIVIDE_BY_ZERO
-- expect fine
(1, 4)
-- expect above
(2)
-- expect fragile
(1, 25.0)
-- put t
(2, 10)
-- apply
-- expect fine
(2, 14)
-- expect above
(3)
-- expect fragile
(1, 25.0), (2, 10.0)

-- trap 45: a view of a table that is not there is refused
CREATE TABLE t (x INT);
CREATE MATERIALIZED VIEW v AS SELECT x FROM gone;
-- expect error: gone

-- trap 45: a view of a column that is not there is refused
CREATE TABLE t (x INT);
CREATE MATERIALIZED VIEW v AS SELECT y FROM t;
-- expect error: y
