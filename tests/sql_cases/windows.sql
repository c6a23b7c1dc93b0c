-- Window functions, QUALIFY, and the first rows of an order.

-- trap 39: numbering, ranks and neighbours move when a row goes
CREATE TABLE t (id INT PRIMARY KEY, k INT, x INT);
CREATE MATERIALIZED VIEW v AS
SELECT id, ROW_NUMBER() OVER (PARTITION BY k ORDER BY x, id) AS n, RANK() OVER (PARTITION BY k ORDER BY x) AS r,
    DENSE_RANK() OVER (PARTITION BY k ORDER BY x) AS d, LAG(id) OVER (PARTITION BY k ORDER BY x, id) AS before,
    LEAD(id, 1, -1) OVER (PARTITION BY k ORDER BY x, id) AS after
FROM t;
-- expect incremental
-- put t
(1, 1, 10), (2, 1, 10), (3, 1, 20), (4, 2, 5)
-- apply
-- expect v
(1, 1, 1, 1, NULL, 2), (2, 2, 1, 1, 1, 3), (3, 3, 3, 2, 2, -1), (4, 1, 1, 1, NULL, -1)
-- delete t
(1)
-- apply
-- expect v
(2, 1, 1, 1, NULL, 3), (3, 2, 2, 2, 2, -1), (4, 1, 1, 1, NULL, -1)

-- trap 39: an update of the partition key touches the partition left and the one entered
CREATE TABLE t (id INT PRIMARY KEY, k STRING, x INT);
CREATE MATERIALIZED VIEW v AS SELECT id, k, COUNT(*) OVER (PARTITION BY k) AS n, SUM(x) OVER (PARTITION BY k) AS s FROM t;
-- expect incremental
-- put t
(1, 'a', 1), (2, 'a', 2), (3, 'b', 4), (4, NULL, 8)
-- apply
-- put t
(2, 'b', 2)
-- apply
-- expect v
(1, 'a', 1, 1), (2, 'b', 2, 6), (3, 'b', 2, 6), (4, NULL, 1, 8)
-- put t
(1, NULL, 1)
-- apply
-- expect v
(1, NULL, 2, 9), (2, 'b', 2, 6), (3, 'b', 2, 6), (4, NULL, 2, 9)

-- trap 39: ROWS counts rows, RANGE takes the peers, NULL sorts first
CREATE TABLE t (id INT PRIMARY KEY, k INT, x INT, y INT);
CREATE MATERIALIZED VIEW v AS
SELECT id, SUM(y) OVER (PARTITION BY k ORDER BY x) AS peers,
    SUM(y) OVER (PARTITION BY k ORDER BY x, id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS so_far,
    SUM(y) OVER (PARTITION BY k ORDER BY x RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS near,
    FIRST_VALUE(id) OVER (PARTITION BY k ORDER BY x, id) AS first
FROM t;
-- expect incremental
-- put t
(1, 1, 1, 1), (2, 1, 1, 2), (3, 1, 2, 4), (4, 1, NULL, 8)
-- apply
-- expect v
(1, 11, 9, 7, 4), (2, 11, 11, 7, 4), (3, 15, 15, 7, 4), (4, 8, 8, 8, 4)
-- delete t
(4)
-- put t
(5, 1, 4, 16)
-- apply
-- expect v
(1, 3, 1, 7, 1), (2, 3, 3, 7, 1), (3, 7, 7, 7, 1), (5, 23, 23, 16, 1)

-- trap 39: QUALIFY keeps the newest row of each key
CREATE TABLE t (k INT, version INT, x STRING);
CREATE MATERIALIZED VIEW v AS SELECT k, x FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY version DESC) = 1;
-- expect incremental
-- put t
(1, 1, 'old'), (1, 2, 'new'), (2, 1, 'only')
-- apply
-- expect v
(1, 'new'), (2, 'only')
-- put t
(1, 3, 'newest')
-- delete t
(2, 1, 'only')
-- apply
-- expect v
(1, 'newest')
-- delete t
(1, 3, 'newest')
-- apply
-- expect v
(1, 'new')

-- trap 39: ties among equal rows are numbered, and one of them goes
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, ROW_NUMBER() OVER (PARTITION BY k ORDER BY x) AS n, NTILE(2) OVER (PARTITION BY k ORDER BY x) AS half FROM t;
-- put t
(1, 5), (1, 5), (1, 5), (2, 5)
-- apply
-- expect v
(1, 1, 1), (1, 2, 1), (1, 3, 2), (2, 1, 1)
-- delete t
(1, 5)
-- apply
-- expect v
(1, 1, 1), (1, 2, 2), (2, 1, 1)

-- trap 39: without partitions, rows at the end of the order are added, others move what follows
CREATE TABLE t (id INT PRIMARY KEY, x INT, y DECIMAL(6,2));
CREATE MATERIALIZED VIEW v AS SELECT id, ROW_NUMBER() OVER (ORDER BY x, id) AS n FROM t;
CREATE MATERIALIZED VIEW ranks AS SELECT id, RANK() OVER (ORDER BY x) AS r, DENSE_RANK() OVER (ORDER BY x) AS d, COUNT(y) OVER (ORDER BY x) AS c FROM t;
CREATE MATERIALIZED VIEW sums AS SELECT id, SUM(y) OVER (ORDER BY x) AS s, MIN(y) OVER (ORDER BY x) AS least, MAX(y) OVER (ORDER BY x ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS most FROM t;
CREATE MATERIALIZED VIEW lags AS SELECT id, LAG(y) OVER (ORDER BY x, id) AS one, LAG(y, 3, 0) OVER (ORDER BY x, id) AS three FROM t;
CREATE MATERIALIZED VIEW down AS SELECT id, SUM(y) OVER (PARTITION BY 1 ORDER BY x DESC) AS s FROM t;
-- expect incremental v
-- expect incremental ranks
-- expect incremental sums
-- expect incremental lags
-- expect incremental down
-- put t
(1, 10, 1.5), (2, 5, NULL)
-- apply
-- expect v
(2, 1), (1, 2)
-- expect sums
(2, NULL, NULL, NULL), (1, 1.5, 1.5, 1.5)
-- put t
(3, 11, 4), (4, 12, NULL), (5, 12, -1)
-- apply
-- expect v
(2, 1), (1, 2), (3, 3), (4, 4), (5, 5)
-- expect ranks
(2, 1, 1, 0), (1, 2, 2, 1), (3, 3, 3, 2), (4, 4, 4, 3), (5, 4, 4, 3)
-- expect sums
(2, NULL, NULL, NULL), (1, 1.5, 1.5, 1.5), (3, 5.5, 1.5, 4), (4, 4.5, -1, 4), (5, 4.5, -1, 4)
-- expect lags
(2, NULL, 0), (1, NULL, 0), (3, 1.5, 0), (4, 4, NULL), (5, NULL, 1.5)
-- expect changes v
(3, 3, 1), (4, 4, 1), (5, 5, 1)
-- expect down
(4, -1), (5, -1), (3, 3), (1, 4.5), (2, 4.5)
-- put t
(6, 12, 1)
-- apply
-- expect ranks
(2, 1, 1, 0), (1, 2, 2, 1), (3, 3, 3, 2), (4, 4, 4, 4), (5, 4, 4, 4), (6, 4, 4, 4)
-- expect lags
(2, NULL, 0), (1, NULL, 0), (3, 1.5, 0), (4, 4, NULL), (5, NULL, 1.5), (6, -1, 4)
-- put t
(7, 1, 2), (8, NULL, 3)
-- apply
-- expect v
(8, 1), (7, 2), (2, 3), (1, 4), (3, 5), (4, 6), (5, 7), (6, 8)
-- put t
(9, 20, 7)
-- delete t
(6)
-- apply
-- expect v
(8, 1), (7, 2), (2, 3), (1, 4), (3, 5), (4, 6), (5, 7), (9, 8)
-- put t
(10, 21, 1)
-- apply
-- expect changes v
(10, 9, 1)
-- expect changes lags
(10, 7, NULL, 1)
-- delete t
(1), (2), (3), (4), (5), (7), (8), (9), (10)
-- apply
-- expect v
nothing
-- put t
(1, 1, 1)
-- apply
-- expect sums
(1, 1, 1, 1)

-- trap 39: a window without partitions whose earlier rows would change is recomputed, and says why
CREATE TABLE t (id INT PRIMARY KEY, x INT, f DOUBLE);
CREATE MATERIALIZED VIEW tiles AS SELECT id, NTILE(2) OVER (ORDER BY x, id) AS n FROM t;
CREATE MATERIALIZED VIEW whole AS SELECT id, SUM(x) OVER () AS s FROM t;
CREATE MATERIALIZED VIEW orders AS SELECT id, RANK() OVER (ORDER BY x) AS a, RANK() OVER (ORDER BY x DESC) AS b FROM t;
CREATE MATERIALIZED VIEW v AS SELECT id, SUM(f) OVER (ORDER BY x) AS s FROM t;
-- expect recompute WINDOW_WITHOUT_PARTITION tiles
-- expect recompute WINDOW_WITHOUT_PARTITION whole
-- expect recompute WINDOW_WITHOUT_PARTITION orders
-- expect recompute WINDOW_WITHOUT_PARTITION v
-- put t
(1, 10, 0.5), (2, 5, 0.25)
-- apply
-- expect tiles
(2, 1), (1, 2)
-- expect v
(2, 0.25), (1, 0.75)

-- trap 39: a window over the groups of an aggregate
CREATE TABLE t (k INT, g INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, g, SUM(x) AS s, RANK() OVER (PARTITION BY k ORDER BY SUM(x) DESC) AS r FROM t GROUP BY k, g;
-- put t
(1, 1, 5), (1, 2, 7), (2, 1, 1)
-- apply
-- expect v
(1, 1, 5, 2), (1, 2, 7, 1), (2, 1, 1, 1)
-- put t
(1, 1, 5)
-- apply
-- expect v
(1, 1, 10, 1), (1, 2, 7, 2), (2, 1, 1, 1)

-- trap 40: a delete inside the first rows pulls in the next one
CREATE TABLE t (id INT PRIMARY KEY, x INT);
CREATE MATERIALIZED VIEW v AS SELECT id, x FROM t ORDER BY x DESC, id LIMIT 2;
-- expect incremental
-- put t
(1, 10), (2, 30), (3, 20), (4, 20)
-- apply
-- expect v
(2, 30), (3, 20)
-- delete t
(2)
-- apply
-- expect v
(3, 20), (4, 20)
-- expect changes v
(2, 30, -1), (4, 20, 1)
-- put t
(5, 5)
-- apply
-- expect changes v
nothing
-- delete t
(3), (4), (1)
-- apply
-- expect v
(5, 5)

-- trap 40: OFFSET, NULLS LAST and duplicates at the boundary
CREATE TABLE t (x INT);
CREATE MATERIALIZED VIEW v AS SELECT x FROM t ORDER BY x NULLS LAST LIMIT 2 OFFSET 1;
-- put t
(1), (2), (2), (NULL)
-- apply
-- expect v
(2), (2)
-- delete t
(1), (2)
-- apply
-- expect v
(NULL)

-- trap 40: the first rows of a join, below an aggregate
CREATE TABLE a (k INT, x INT);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT COUNT(*) AS n, SUM(y) AS s FROM (SELECT a.k, x, y FROM a JOIN b ON a.k = b.k ORDER BY y DESC, x, a.k LIMIT 3);
-- put a
(1, 1), (2, 2)
-- put b
(1, 10), (1, 20), (2, 30), (2, 40)
-- apply
-- expect v
(3, 90)
-- delete a
(2, 2)
-- apply
-- expect v
(2, 30)

-- trap 40: LIMIT without an order gives the first rows by all columns, whatever came first
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT x, k FROM t LIMIT 2;
CREATE MATERIALIZED VIEW groups AS SELECT k, COUNT(*) AS n FROM t GROUP BY k LIMIT 1;
CREATE MATERIALIZED VIEW apart AS SELECT COUNT(*) AS n, SUM(x) AS s FROM (SELECT x FROM t LIMIT 2 OFFSET 1);
CREATE MATERIALIZED VIEW either AS (SELECT x FROM t UNION SELECT k FROM t) LIMIT 2;
-- expect incremental v
-- expect incremental groups
-- expect incremental apart
-- expect incremental either
-- put t
(2, 5), (1, 5), (1, 7)
-- apply
-- expect v
(5, 1), (5, 2)
-- expect groups
(1, 2)
-- expect apart
(2, 12)
-- expect either
(1), (2)
-- put t
(1, 9)
-- apply
-- expect changes v
nothing
-- delete t
(1, 5)
-- apply
-- expect v
(5, 2), (7, 1)
-- put t
(NULL, NULL)
-- apply
-- expect v
(NULL, NULL), (5, 2)
-- expect groups
(NULL, 1)

-- trap 40: LIMIT without an order over what cannot be sorted is recomputed, and says why
CREATE TABLE t (x INT, m MAP<INT, INT>);
CREATE MATERIALIZED VIEW v AS SELECT x, m FROM t LIMIT 10;
-- expect recompute LIMIT_WITHOUT_ORDER
-- put t
(1, map(1, 2))
-- apply
-- expect v
(1, map(1, 2))

-- trap 39: windows over windows, with a stored relation below every third
CREATE TABLE a (k INT, x INT, y INT);
CREATE TABLE b (k INT, z INT);
CREATE VIEW ranked AS SELECT a.k, x, y, z,
  rank() OVER (PARTITION BY x ORDER BY z) AS r1, rank() OVER (PARTITION BY y ORDER BY z) AS r2,
  rank() OVER (PARTITION BY z ORDER BY x) AS r3, rank() OVER (PARTITION BY a.k ORDER BY y) AS r4,
  rank() OVER (PARTITION BY x + y ORDER BY z) AS r5
  FROM a JOIN b ON a.k = b.k;
CREATE MATERIALIZED VIEW v AS SELECT * FROM ranked;
CREATE MATERIALIZED VIEW summed AS SELECT r1 + r2 + r3 + r4 + r5 AS r, COUNT(*) AS n FROM ranked GROUP BY r1 + r2 + r3 + r4 + r5;
-- expect incremental
-- put a
(1, 1, 2), (1, 2, 2), (2, 1, 1)
-- put b
(1, 5), (2, 6)
-- apply
-- expect v
(1, 1, 2, 5, 1, 1, 1, 1, 1), (1, 2, 2, 5, 1, 1, 2, 1, 1), (2, 1, 1, 6, 2, 1, 1, 1, 1)
-- delete a
(1, 1, 2)
-- put b
(1, 4)
-- apply
-- expect v
(1, 2, 2, 4, 1, 1, 1, 1, 1), (1, 2, 2, 5, 2, 2, 1, 1, 2), (2, 1, 1, 6, 1, 1, 1, 1, 1)

-- trap 39: a running sum of decimals with 38 digits, of which adding two would round one away
CREATE TABLE t (id INT, m DECIMAL(30,10), n DECIMAL(38,2));
CREATE MATERIALIZED VIEW v AS SELECT id, SUM(m) OVER (ORDER BY id) AS s FROM t;
CREATE MATERIALIZED VIEW whole AS SELECT id, SUM(n) OVER (ORDER BY id) AS s FROM t;
-- expect recompute WINDOW_WITHOUT_PARTITION v
-- expect incremental whole
-- put t
(1, 0.0000000001, 0.01)
-- apply
-- put t
(2, 0.0000000001, 0.01)
-- apply
-- expect v
(1, 0.0000000001), (2, 0.0000000002)
-- expect whole
(1, 0.01), (2, 0.02)

-- trap 39: running windows in the order of dates after 9999 and of intervals
CREATE TABLE t (d DATE, ts TIMESTAMP, i INTERVAL DAY TO SECOND, x INT);
CREATE MATERIALIZED VIEW v AS SELECT x, SUM(x) OVER (ORDER BY d) AS s FROM t;
CREATE MATERIALIZED VIEW timed AS SELECT x, SUM(x) OVER (ORDER BY ts DESC) AS s FROM t;
CREATE MATERIALIZED VIEW long AS SELECT x, SUM(x) OVER (ORDER BY i) AS s FROM t;
-- expect incremental v
-- expect incremental timed
-- expect recompute WINDOW_WITHOUT_PARTITION long
-- put t
(DATE '9999-12-31', TIMESTAMP '9999-12-31 23:00:00', INTERVAL '1' DAY, 1)
-- apply
-- put t
(date_add(DATE '9999-12-31', 5), timestampadd(DAY, 5, TIMESTAMP '9999-12-31 00:00:00'), INTERVAL '2' DAY, 2)
-- apply
-- put t
(date_add(DATE '9999-12-31', 6), timestampadd(DAY, 6, TIMESTAMP '9999-12-31 00:00:00'), INTERVAL '3' DAY, 4)
-- apply
-- expect v
(1, 1), (2, 3), (4, 7)
-- expect timed
(1, 7), (2, 6), (4, 4)
-- expect long
(1, 1), (2, 3), (4, 7)
