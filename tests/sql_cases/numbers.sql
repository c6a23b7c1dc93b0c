-- Decimals and integers: precision, overflow, and sums of nothing.

-- trap 8: the types and values of SUM and AVG over decimals
CREATE TABLE t (k INT, m DECIMAL(5, 2));
CREATE MATERIALIZED VIEW v AS SELECT k, SUM(m) AS s, AVG(m) AS a FROM t GROUP BY k;
-- expect incremental
-- put t
(1, 1.00), (1, 1.00), (1, 3.00), (2, 0.01)
-- apply
-- expect v
(1, 5.00, 1.666667), (2, 0.01, 0.010000)
-- put t
(1, -0.01), (2, 0.02)
-- delete t
(1, 3.00)
-- apply
-- expect v
(1, 1.99, 0.663333), (2, 0.03, 0.015000)

-- trap 8: a sum of decimals that would not fit halfway, but does in the end
CREATE TABLE t (id INT PRIMARY KEY, m DECIMAL(38, 0));
CREATE MATERIALIZED VIEW v AS SELECT SUM(m) AS s FROM t;
-- put t
(1, 90000000000000000000000000000000000000)
-- apply
-- put t
(2, 90000000000000000000000000000000000000)
-- delete t
(1)
-- apply
-- expect v
(90000000000000000000000000000000000000)

-- trap 8: a sum of decimals that overflows is an error, and the batch leaves no trace
CREATE TABLE t (id INT PRIMARY KEY, m DECIMAL(38, 0));
CREATE MATERIALIZED VIEW v AS SELECT SUM(m) AS s, COUNT(*) AS n FROM t;
-- put t
(1, 90000000000000000000000000000000000000)
-- apply
-- put t
(2, 90000000000000000000000000000000000000)
-- apply
-- expect error: overflow | out_of_range
-- expect v
(90000000000000000000000000000000000000, 1)
-- put t
(3, 1)
-- apply
-- expect v
(90000000000000000000000000000000000001, 2)

-- trap 9: a BIGINT sum that overflows only until something is taken back
CREATE TABLE t (k INT, x BIGINT);
CREATE MATERIALIZED VIEW v AS SELECT k, SUM(x) AS s FROM t GROUP BY k;
-- expect incremental
-- put t
(1, 9223372036854775807), (2, -9223372036854775807)
-- apply
-- put t
(1, 5), (2, -5)
-- delete t
(1, 9223372036854775807), (2, -9223372036854775807)
-- apply
-- expect v
(1, 5), (2, -5)

-- trap 9: an INT sum is a BIGINT, and one that overflows is an error
CREATE TABLE t (id INT PRIMARY KEY, i INT, x BIGINT);
CREATE MATERIALIZED VIEW v AS SELECT SUM(i) AS si, SUM(x) AS sx FROM t;
-- put t
(1, 2147483647, 9223372036854775807), (2, 2147483647, 0)
-- apply
-- expect v
(4294967294, 9223372036854775807)
-- put t
(3, 1, 1)
-- apply
-- expect error: overflow
-- expect v
(4294967294, 9223372036854775807)

-- trap 10: the sum of values of which only NULL remains is NULL, not 0
CREATE TABLE t (k INT, x INT, m DECIMAL(8, 2));
CREATE MATERIALIZED VIEW v AS SELECT k, SUM(x) AS s, AVG(m) AS a, COUNT(x) AS n FROM t GROUP BY k;
-- expect incremental
-- put t
(1, 5, 2.50), (1, NULL, NULL), (2, NULL, NULL)
-- apply
-- expect v
(1, 5, 2.5, 1), (2, NULL, NULL, 0)
-- delete t
(1, 5, 2.50)
-- apply
-- expect v
(1, NULL, NULL, 0), (2, NULL, NULL, 0)
-- put t
(2, 0, 0)
-- apply
-- expect v
(1, NULL, NULL, 0), (2, 0, 0, 1)
