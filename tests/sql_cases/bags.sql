-- Duplicates, changes that cancel out, and deletes of what is not there.

-- trap 13: deleting one of three equal rows leaves two
CREATE TABLE t (a INT, b STRING);
CREATE MATERIALIZED VIEW v AS SELECT a, b FROM t;
-- expect incremental
-- put t
(1, 'x'), (1, 'x'), (1, 'x')
-- apply
-- delete t
(1, 'x')
-- apply
-- expect v
(1, 'x'), (1, 'x')
-- expect changes v
(1, 'x', -1)

-- trap 13: two equal rows in one delete take two away
CREATE TABLE t (a INT);
CREATE MATERIALIZED VIEW v AS SELECT a, COUNT(*) AS n FROM t GROUP BY a;
-- put t
(1), (1), (1)
-- apply
-- delete t
(1), (1)
-- apply
-- expect v
(1, 1)

-- trap 14: rows that differ only in a column not selected
CREATE TABLE t (id INT PRIMARY KEY, c STRING);
CREATE MATERIALIZED VIEW v AS SELECT c FROM t;
-- expect incremental
-- put t
(1, 'x'), (2, 'x'), (3, NULL), (4, NULL)
-- apply
-- expect v
('x'), ('x'), (NULL), (NULL)
-- delete t
(2), (3)
-- apply
-- expect v
('x'), (NULL)

-- trap 15: a row deleted and put in one batch changes nothing
CREATE TABLE t (a INT, x INT);
CREATE MATERIALIZED VIEW plain AS SELECT a, x FROM t;
CREATE MATERIALIZED VIEW sums AS SELECT a, SUM(x) AS s, MAX(x) AS m FROM t GROUP BY a;
-- put t
(1, 1), (2, 2)
-- apply
-- delete t
(1, 1)
-- put t
(1, 1)
-- apply
-- expect changes plain
nothing
-- expect changes sums
nothing
-- expect plain
(1, 1), (2, 2)

-- trap 15: an update to the same values changes nothing
CREATE TABLE t (id INT PRIMARY KEY, x INT, s STRING);
CREATE MATERIALIZED VIEW v AS SELECT s, SUM(x) AS total FROM t GROUP BY s;
-- put t
(1, 10, 'a'), (2, NULL, NULL)
-- apply
-- put t
(1, 10, 'a'), (2, NULL, NULL)
-- apply
-- expect changes v
nothing

-- trap 15: changes in a column that the view does not read change nothing
CREATE TABLE t (id INT PRIMARY KEY, x INT, unused STRING);
CREATE MATERIALIZED VIEW v AS SELECT id, x FROM t;
-- put t
(1, 10, 'a')
-- apply
-- put t
(1, 10, 'b')
-- apply
-- expect changes v
nothing
-- expect v
(1, 10)

-- trap 16: of several puts of one key in a batch the last one counts
CREATE TABLE t (id INT PRIMARY KEY, x INT);
CREATE MATERIALIZED VIEW v AS SELECT COUNT(*) AS n, SUM(x) AS s FROM t;
-- put t
(1, 1), (1, 2), (2, 5), (1, 3)
-- apply
-- expect v
(2, 8)
-- delete t
(1)
-- put t
(1, 100), (1, 4), (2, 6), (2, 5)
-- apply
-- expect v
(2, 9)
-- expect changes v
(2, 8, -1), (2, 9, 1)

-- trap 17: deleting a row that is not there is rejected, and leaves no negative count
CREATE TABLE t (a INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT a, COUNT(*) AS n FROM t GROUP BY a;
-- put t
(1, 1)
-- apply
-- delete t
(2, 2)
-- apply
-- expect rejected t
(2, 2)
-- expect v
(1, 1)
-- expect changes v
nothing
-- put t
(2, 2)
-- apply
-- expect v
(1, 1), (2, 1)

-- trap 17: deleting one more than there are rejects that one
CREATE TABLE t (a INT);
CREATE MATERIALIZED VIEW v AS SELECT a FROM t;
-- put t
(1), (1)
-- apply
-- delete t
(1), (1), (1)
-- apply
-- expect rejected t
(1)
-- expect v
nothing

-- trap 17: an array is not another with the same elements, as a map would be
CREATE TABLE t (a ARRAY<STRUCT<k: INT, v: INT>>, b ARRAY<ARRAY<INT>>);
CREATE MATERIALIZED VIEW v AS SELECT a[0].k AS k, b[0][0] AS b FROM t;
-- put t
(ARRAY(NAMED_STRUCT('k', 1, 'v', 2), NAMED_STRUCT('k', 3, 'v', 4)), ARRAY(ARRAY(1, 2), ARRAY(3, 4)))
-- apply
-- delete t
(ARRAY(NAMED_STRUCT('k', 3, 'v', 4), NAMED_STRUCT('k', 1, 'v', 2)), ARRAY(ARRAY(1, 2), ARRAY(3, 4))), (ARRAY(NAMED_STRUCT('k', 1, 'v', 2), NAMED_STRUCT('k', 3, 'v', 4)), ARRAY(ARRAY(3, 4), ARRAY(1, 2)))
-- apply
-- expect v
(1, 1)
-- delete t
(ARRAY(NAMED_STRUCT('k', 3, 'v', 4), NAMED_STRUCT('k', 1, 'v', 2)), ARRAY(ARRAY(1, 2), ARRAY(3, 4))), (ARRAY(NAMED_STRUCT('k', 1, 'v', 2), NAMED_STRUCT('k', 3, 'v', 4)), ARRAY(ARRAY(1, 2), ARRAY(3, 4)))
-- apply
-- expect v
nothing

-- trap 17: deleting a key that is not there is rejected, and the rest is done
CREATE TABLE t (id INT PRIMARY KEY, x INT);
CREATE MATERIALIZED VIEW v AS SELECT COUNT(*) AS n FROM t;
-- put t
(1, 1)
-- apply
-- delete t
(7), (1)
-- apply
-- expect rejected t
(7)
-- expect v
(0)
