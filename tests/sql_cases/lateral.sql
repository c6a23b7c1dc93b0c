-- LATERAL: queries in FROM that look at the row before them.

-- trap 36, 48: an aggregate gives one row for every row, also where nothing matches
CREATE TABLE a (k INT);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT a.k, m.top, m.n FROM a, LATERAL (SELECT MAX(y) AS top, COUNT(*) AS n FROM b WHERE b.k = a.k) m;
-- expect incremental
-- put a
(1), (2), (NULL)
-- put b
(1, 5)
-- apply
-- expect v
(1, 5, 1), (2, NULL, 0), (NULL, NULL, 0)
-- put b
(2, 3), (NULL, 8)
-- delete b
(1, 5)
-- apply
-- expect v
(1, NULL, 0), (2, 3, 1), (NULL, NULL, 0)
-- put a
(2)
-- apply
-- expect v
(1, NULL, 0), (2, 3, 1), (2, 3, 1), (NULL, NULL, 0)

-- trap 33, 48: LEFT JOIN LATERAL keeps rows that match nothing, by WHERE or by ON
CREATE TABLE a (k INT, x INT);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW plain AS SELECT a.k, m.y FROM a LEFT JOIN LATERAL (SELECT y FROM b WHERE b.k = a.k AND b.y > a.x) m;
CREATE MATERIALIZED VIEW tested AS SELECT a.k, m.y, m.z FROM a LEFT JOIN LATERAL (SELECT y, b.y + a.x AS z FROM b WHERE b.k = a.k) m ON m.y > 5;
CREATE MATERIALIZED VIEW counted AS SELECT a.k, m.n FROM a LEFT JOIN LATERAL (SELECT COUNT(*) AS n FROM b WHERE b.k = a.k) m ON m.n > a.x;
CREATE MATERIALIZED VIEW v AS SELECT a.k, m.n FROM a JOIN LATERAL (SELECT COUNT(*) AS n FROM b WHERE b.k = a.k) m ON m.n <> a.x;
-- expect incremental plain
-- expect incremental tested
-- expect incremental counted
-- expect incremental
-- put a
(1, 1), (2, 0), (NULL, 0)
-- put b
(1, 5), (1, 7), (2, 0)
-- apply
-- expect plain
(1, 5), (1, 7), (2, NULL), (NULL, NULL)
-- expect tested
(1, 7, 8), (2, NULL, NULL), (NULL, NULL, NULL)
-- expect counted
(1, 2), (2, 1), (NULL, NULL)
-- expect v
(1, 2), (2, 1)
-- delete b
(1, 7)
-- put b
(2, 9)
-- apply
-- expect plain
(1, 5), (2, 9), (NULL, NULL)
-- expect tested
(1, NULL, NULL), (2, 9, 9), (NULL, NULL, NULL)
-- expect counted
(1, NULL), (2, 2), (NULL, NULL)
-- expect v
(2, 2)

-- trap 40, 48: the first rows for each row, with an offset, and by other than equality
CREATE TABLE a (k INT);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT a.k, m.y FROM a, LATERAL (SELECT y FROM b WHERE b.k = a.k ORDER BY y DESC LIMIT 2) m;
CREATE MATERIALIZED VIEW second AS SELECT a.k, m.y FROM a LEFT JOIN LATERAL (SELECT y FROM b WHERE b.k = a.k ORDER BY y LIMIT 1 OFFSET 1) m ON TRUE;
CREATE MATERIALIZED VIEW below AS SELECT a.k, m.y FROM a, LATERAL (SELECT y FROM b WHERE b.k <= a.k ORDER BY y LIMIT 1) m;
-- expect incremental v
-- expect incremental second
-- expect incremental below
-- put a
(1), (1), (2)
-- put b
(1, 5), (1, 5), (1, 7), (2, 3)
-- apply
-- expect v
(1, 7), (1, 5), (1, 7), (1, 5), (2, 3)
-- expect second
(1, 5), (1, 5), (2, NULL)
-- expect below
(1, 5), (1, 5), (2, 3)
-- delete b
(1, 7)
-- put b
(2, 1)
-- apply
-- expect v
(1, 5), (1, 5), (1, 5), (1, 5), (2, 3), (2, 1)
-- expect second
(1, 5), (1, 5), (2, 3)
-- expect below
(1, 5), (1, 5), (2, 1)

-- trap 24, 48: groups, DISTINCT and windows inside, by equality and without
CREATE TABLE a (k INT);
CREATE TABLE b (k INT, y INT, x INT);
CREATE MATERIALIZED VIEW grouped AS SELECT a.k, m.y, m.n FROM a, LATERAL (SELECT y, COUNT(*) AS n FROM b WHERE b.k < a.k GROUP BY y) m;
CREATE MATERIALIZED VIEW known AS SELECT a.k, m.y FROM a, LATERAL (SELECT DISTINCT y FROM b WHERE b.k <= a.k) m;
CREATE MATERIALIZED VIEW ranked AS SELECT a.k, m.x, m.r FROM a, LATERAL (SELECT x, RANK() OVER (ORDER BY x) AS r FROM b WHERE b.k = a.k) m;
CREATE MATERIALIZED VIEW v AS SELECT a.k, m.n FROM a, LATERAL (SELECT COUNT(*) AS n FROM b WHERE b.k < a.k) m;
-- expect incremental grouped
-- expect incremental known
-- expect incremental ranked
-- expect incremental
-- put a
(2), (3), (NULL)
-- put b
(1, 1, 4), (2, 1, 3), (2, 1, 3), (2, 6, 1)
-- apply
-- expect grouped
(2, 1, 1), (3, 1, 3), (3, 6, 1)
-- expect known
(2, 1), (2, 6), (3, 1), (3, 6)
-- expect ranked
(2, 1, 1), (2, 3, 2), (2, 3, 2)
-- expect v
(2, 1), (3, 4), (NULL, 0)
-- delete b
(1, 1, 4), (2, 6, 1)
-- put a
(1)
-- apply
-- expect grouped
(3, 1, 2)
-- expect known
(2, 1), (3, 1)
-- expect ranked
(2, 3, 1), (2, 3, 1)
-- expect v
(1, 0), (2, 0), (3, 2), (NULL, 0)

-- trap 48: columns made of the row itself, one after another, and a condition on it
CREATE TABLE a (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT a.k, m.y, n.z FROM a, LATERAL (SELECT a.x + 1 AS y) m, LATERAL (SELECT m.y * 2 AS z) n;
CREATE MATERIALIZED VIEW some AS SELECT a.k, m.y FROM a LEFT JOIN LATERAL (SELECT a.x + 1 AS y WHERE a.x > 0) m;
-- expect incremental v
-- expect incremental some
-- put a
(1, 1), (2, NULL), (3, 0)
-- apply
-- expect v
(1, 2, 4), (2, NULL, NULL), (3, 1, 2)
-- expect some
(1, 2), (2, NULL), (3, NULL)
-- delete a
(1, 1)
-- apply
-- expect v
(2, NULL, NULL), (3, 1, 2)

-- trap 48: a column of the row itself once for each row of VALUES, none of whose columns is asked for
CREATE TABLE a (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT a.k, m.y FROM a, LATERAL (SELECT a.x AS y FROM VALUES (1), (2) AS w(z)) m;
-- expect incremental
-- put a
(1, 5), (3, NULL)
-- apply
-- expect v
(1, 5), (1, 5), (3, NULL), (3, NULL)
-- delete a
(1, 5)
-- apply
-- expect v
(3, NULL), (3, NULL)

-- trap 48: what stays with Spark: HAVING without a group, set operations, unlike types, ON over a table function
CREATE TABLE a (k INT, r ARRAY<INT>);
CREATE TABLE b (k INT, s STRING);
CREATE MATERIALIZED VIEW had AS SELECT a.k, m.n FROM a, LATERAL (SELECT COUNT(*) AS n FROM b WHERE b.k = a.k HAVING COUNT(*) <> 1) m;
CREATE MATERIALIZED VIEW both AS SELECT a.k, m.s FROM a, LATERAL (SELECT s FROM b WHERE b.k = a.k UNION ALL SELECT s FROM b WHERE b.k > a.k) m;
CREATE MATERIALIZED VIEW texts AS SELECT a.k, m.n FROM a, LATERAL (SELECT COUNT(*) AS n FROM b WHERE b.s = a.k) m;
CREATE MATERIALIZED VIEW v AS SELECT a.k, e.c FROM a LEFT JOIN LATERAL explode(r) AS e(c) ON e.c > 1;
-- expect recompute UNSUPPORTED_SUBQUERY had
-- expect recompute UNSUPPORTED_SUBQUERY both
-- expect recompute UNSUPPORTED_SUBQUERY texts
-- expect recompute UNSUPPORTED_OPERATOR v
-- put a
(1, array(1, 2)), (2, NULL)
-- put b
(1, '1'), (2, '01'), (2, '1')
-- apply
-- expect had
(2, 2)
-- expect both
(1, '1'), (1, '01'), (1, '1'), (2, '01'), (2, '1')
-- expect texts
(1, 3), (2, 0)
-- expect v
(1, 2), (2, NULL)

-- trap 40, 48: the nearest row, by a distance made of both sides
CREATE TABLE a (id INT, k INT, x INT);
CREATE TABLE b (k INT, v INT);
CREATE MATERIALIZED VIEW v AS SELECT a.id, m.v FROM a, LATERAL (SELECT b.v, abs(b.v - a.x) AS d FROM b WHERE b.k = a.k ORDER BY d LIMIT 1) m;
CREATE MATERIALIZED VIEW anywhere AS SELECT a.id, m.v FROM a LEFT JOIN LATERAL (SELECT b.v, abs(b.v - a.x) AS d FROM b ORDER BY d LIMIT 1) m;
-- expect incremental v
-- expect incremental anywhere
-- put a
(1, 1, 10), (2, 2, 7), (3, 3, 1)
-- put b
(1, 4), (1, 13), (2, 8)
-- apply
-- expect v
(1, 13), (2, 8)
-- expect anywhere
(1, 8), (2, 8), (3, 4)
-- delete b
(1, 13)
-- put b
(2, 8), (3, 0)
-- apply
-- expect v
(1, 4), (2, 8), (3, 0)
-- expect anywhere
(1, 8), (2, 8), (3, 0)
