-- NaN, infinities, negative zero, and sums that must not drift.

-- trap 5: all NaN are one group and join each other
CREATE TABLE t (d DOUBLE, x INT);
CREATE MATERIALIZED VIEW groups AS SELECT d, SUM(x) AS s FROM t GROUP BY d;
CREATE MATERIALIZED VIEW pairs AS SELECT p.x AS px, q.x AS qx FROM t p JOIN t q ON p.d = q.d AND p.x < q.x;
-- put t
(double('NaN'), 1), (double('NaN'), 2), (1.5, 4)
-- apply
-- expect groups
(double('NaN'), 3), (1.5, 4)
-- expect pairs
(1, 2)
-- delete t
(double('NaN'), 1)
-- apply
-- expect groups
(double('NaN'), 2), (1.5, 4)
-- expect pairs
nothing

-- trap 5: MAX is NaN until the NaN goes, and the sum is a number again
CREATE TABLE t (k INT, d DOUBLE);
CREATE MATERIALIZED VIEW v AS SELECT k, MAX(d) AS top, SUM(d) AS s, AVG(d) AS a FROM t GROUP BY k;
-- expect incremental
-- put t
(1, double('NaN')), (1, 2.0), (1, 3.0), (2, double('inf')), (2, 1.0)
-- apply
-- expect v
(1, double('NaN'), double('NaN'), double('NaN')), (2, double('inf'), double('inf'), double('inf'))
-- delete t
(1, double('NaN')), (2, double('inf'))
-- apply
-- expect v
(1, 3.0, 5.0, 2.5), (2, 1.0, 1.0, 1.0)

-- trap 5: infinities of both signs give NaN while both are there
CREATE TABLE t (id INT PRIMARY KEY, d DOUBLE);
CREATE MATERIALIZED VIEW v AS SELECT SUM(d) AS s FROM t;
-- put t
(1, double('inf')), (2, double('-inf')), (3, 1.0)
-- apply
-- expect v
(double('NaN'))
-- delete t
(2)
-- apply
-- expect v
(double('inf'))
-- put t
(1, 4.0)
-- apply
-- expect v
(5.0)

-- trap 6: negative zero is zero in groups, joins and DISTINCT
CREATE TABLE t (d DOUBLE, x INT);
CREATE TABLE u (d DOUBLE);
CREATE MATERIALIZED VIEW groups AS SELECT d, COUNT(*) AS n FROM t GROUP BY d;
CREATE MATERIALIZED VIEW joined AS SELECT x FROM t JOIN u ON t.d = u.d;
CREATE MATERIALIZED VIEW different AS SELECT DISTINCT d FROM t;
-- put t
(0.0D, 1), (-0.0D, 2), (1.0, 3)
-- put u
(-0.0D)
-- apply
-- expect groups
(0.0, 2), (1.0, 1)
-- expect joined
(1), (2)
-- expect different
(0.0), (1.0)
-- delete t
(-0.0D, 2)
-- apply
-- expect groups
(0.0, 1), (1.0, 1)
-- expect joined
(1)
-- expect different
(0.0), (1.0)

-- trap 6: a group of zeros of both signs goes when the last of them does
CREATE TABLE t (id INT PRIMARY KEY, d DOUBLE);
CREATE MATERIALIZED VIEW v AS SELECT d, COUNT(*) AS n FROM t GROUP BY d;
-- put t
(1, -0.0D)
-- apply
-- put t
(2, 0.0D)
-- apply
-- delete t
(1)
-- apply
-- expect v
(0.0, 1)
-- delete t
(2)
-- apply
-- expect v
nothing

-- trap 7: a large number that comes and goes leaves no trace in a sum
CREATE TABLE t (k INT, d DOUBLE);
CREATE MATERIALIZED VIEW v AS SELECT k, SUM(d) AS s, AVG(d) AS a FROM t GROUP BY k;
CREATE MATERIALIZED VIEW total AS SELECT SUM(d) AS s FROM t;
-- put t
(1, 1.0)
-- apply
-- put t
(1, 1e16)
-- apply
-- delete t
(1, 1e16)
-- apply
-- expect v
(1, 1.0, 1.0)
-- expect total
(1.0)

-- trap 7: tenths added and taken back many times sum up to what is left
CREATE TABLE t (id INT PRIMARY KEY, d FLOAT);
CREATE MATERIALIZED VIEW v AS SELECT SUM(d) AS s, COUNT(d) AS n FROM t;
-- put t
(1, 0.1), (2, 0.2), (3, 0.3), (4, 1e20)
-- apply
-- put t
(4, 0.4), (3, 1e-20)
-- apply
-- delete t
(1), (2), (4)
-- apply
-- expect v
(CAST(CAST(1e-20 AS FLOAT) AS DOUBLE), 1)

-- trap 6: the sign of a zero is seen in its text, and goes with its row
CREATE TABLE t (id INT PRIMARY KEY, d DOUBLE);
CREATE TABLE u (d DOUBLE);
CREATE MATERIALIZED VIEW v AS SELECT id, CAST(d AS STRING) AS d FROM t;
CREATE MATERIALIZED VIEW w AS SELECT CAST(d AS STRING) AS d FROM u;
-- put t
(1, -0.0D), (2, 0.0D)
-- put u
(-0.0D), (0.0D), (1.0)
-- apply
-- put t
(1, 1.0)
-- delete t
(2)
-- delete u
(0.0D)
-- apply
-- expect v
(1, '1.0')
-- delete u
(0.0D)
-- apply
-- expect w
('1.0')
