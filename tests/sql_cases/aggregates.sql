-- Aggregates that remember more than a sum.

-- trap 24: distinct aggregates count values, whatever their multiplicity
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, COUNT(DISTINCT x) AS n, SUM(DISTINCT x) AS s, COUNT(x) AS every FROM t GROUP BY k;
-- expect incremental
-- put t
(1, 5), (1, 5), (1, 7), (1, NULL)
-- apply
-- expect v
(1, 2, 12, 3)
-- delete t
(1, 5)
-- apply
-- expect v
(1, 2, 12, 2)
-- delete t
(1, 5)
-- apply
-- expect v
(1, 1, 7, 1)

-- trap 24: COUNT(DISTINCT a, b) leaves out rows with any NULL
CREATE TABLE t (a INT, b INT);
CREATE MATERIALIZED VIEW v AS SELECT COUNT(DISTINCT a, b) AS n FROM t;
-- put t
(1, 1), (1, 1), (1, 2), (NULL, 1), (1, NULL), (NULL, NULL)
-- apply
-- expect v
(2)
-- delete t
(1, 2), (NULL, 1)
-- apply
-- expect v
(1)

-- trap 26: deviation of one value is NULL, of equal values zero, never negative
CREATE TABLE t (k INT, x DOUBLE);
CREATE MATERIALIZED VIEW v AS SELECT k, STDDEV(x) AS d, VAR_POP(x) AS p FROM t GROUP BY k;
-- put t
(1, 1000000001.0), (2, 4.0), (2, 8.0)
-- apply
-- expect v
(1, NULL, 0.0), (2, 2.8284271247461903, 4.0)
-- put t
(1, 1000000001.0), (1, 1000000001.0)
-- delete t
(2, 8.0)
-- apply
-- expect v
(1, 0.0, 0.0), (2, NULL, 0.0)

-- trap 26: correlation and covariance after a point is taken out
CREATE TABLE t (x INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT CORR(x, y) AS c, COVAR_POP(x, y) AS p, COVAR_SAMP(x, y) AS s FROM t;
-- expect v
(NULL, NULL, NULL)
-- put t
(1, 2), (2, 4), (3, 6), (9, 0), (NULL, 5)
-- apply
-- delete t
(9, 0)
-- apply
-- expect v
(1.0, 1.3333333333333333, 2.0)

-- trap 27: lists in a stated order, and the row that has the maximum
CREATE TABLE t (k INT, s STRING, x INT);
CREATE MATERIALIZED VIEW v AS
SELECT k, SORT_ARRAY(COLLECT_LIST(s)) AS l, LISTAGG(s, ',') WITHIN GROUP (ORDER BY s) AS text,
    MAX_BY(s, STRUCT(x, s)) AS top, MIN_BY(s, STRUCT(x, s)) AS bottom
FROM t GROUP BY k;
-- put t
(1, 'b', 2), (1, 'a', 2), (1, 'b', 1), (2, NULL, 1)
-- apply
-- expect v
(1, array('a', 'b', 'b'), 'a,b,b', 'b', 'b'), (2, CAST(array() AS ARRAY<STRING>), NULL, NULL, NULL)
-- delete t
(1, 'b', 2)
-- apply
-- expect v
(1, array('a', 'b'), 'a,b', 'a', 'b'), (2, CAST(array() AS ARRAY<STRING>), NULL, NULL, NULL)

-- trap 27: FIRST and ANY_VALUE where only one value is possible
CREATE TABLE t (k INT, s STRING);
CREATE MATERIALIZED VIEW v AS SELECT k, FIRST(k) AS f, ANY_VALUE(k) AS a, FIRST(s) AS s FROM t GROUP BY k;
-- put t
(1, 'x'), (1, 'x'), (2, 'y')
-- apply
-- delete t
(1, 'x')
-- apply
-- expect v
(1, 1, 1, 'x'), (2, 2, 2, 'y')

-- trap 28: percentiles, medians and sketches forget what is deleted
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS
SELECT k, MEDIAN(x) AS m, PERCENTILE(x, 0.25) AS p, APPROX_COUNT_DISTINCT(x) AS n, PERCENTILE_APPROX(x, 0.5) AS a
FROM t GROUP BY k;
-- put t
(1, 1), (1, 2), (1, 3), (1, 10), (2, 7)
-- apply
-- expect v
(1, 2.5, 1.75, 4, 2), (2, 7.0, 7.0, 1, 7)
-- delete t
(1, 10), (1, 1)
-- apply
-- expect v
(1, 2.5, 2.25, 2, 2), (2, 7.0, 7.0, 1, 7)

-- trap 28: Boolean and bitwise aggregates after a delete
CREATE TABLE t (k INT, b BOOLEAN, x INT);
CREATE MATERIALIZED VIEW v AS
SELECT k, BOOL_AND(b) AS every, BOOL_OR(b) AS some, BIT_OR(x) AS o, BIT_XOR(x) AS x, COUNT_IF(b) AS n
FROM t GROUP BY k;
-- put t
(1, true, 1), (1, false, 6), (1, NULL, 6)
-- apply
-- expect v
(1, false, true, 7, 1, 1)
-- delete t
(1, false, 6)
-- apply
-- expect v
(1, true, true, 7, 7, 1)

-- trap 24: a star inside a call is all columns, also those that nothing else needs
CREATE TABLE t (id INT, k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, COUNT(DISTINCT *) AS n FROM t GROUP BY k;
CREATE MATERIALIZED VIEW text AS SELECT id, concat_ws(',', *) AS s FROM t;
CREATE MATERIALIZED VIEW fields AS SELECT id, struct(t.*).x AS s FROM t WHERE hash(*) IS NOT NULL;
CREATE MATERIALIZED VIEW plain AS SELECT k, COUNT(*) AS n FROM (SELECT t.* FROM t) t GROUP BY k;
-- expect recompute UNSUPPORTED_OPERATOR v
-- expect recompute UNSUPPORTED_OPERATOR text
-- expect recompute UNSUPPORTED_OPERATOR fields
-- expect incremental plain
-- put t
(1, 1, 5), (2, 1, 5), (2, 1, 5), (3, 1, NULL)
-- apply
-- expect v
(1, 2)
-- expect text
(1, '1,1,5'), (2, '2,1,5'), (2, '2,1,5'), (3, '3,1')
-- expect fields
(1, 5), (2, 5), (2, 5), (3, NULL)
-- expect plain
(1, 4)
