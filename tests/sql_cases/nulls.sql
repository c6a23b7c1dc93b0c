-- NULL in group keys, in rows taken back, in join keys and in composite keys.

-- trap 1: rows with a NULL group key are one group
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY k;
-- expect incremental
-- put t
(NULL, 1), (NULL, 2), (1, 3)
-- apply
-- expect v
(NULL, 2, 3), (1, 1, 3)
-- put t
(NULL, 10)
-- apply
-- expect v
(NULL, 3, 13), (1, 1, 3)
-- expect changes v
(NULL, 2, 3, -1), (NULL, 3, 13, 1)
-- delete t
(NULL, 1), (NULL, 2), (NULL, 10)
-- apply
-- expect v
(1, 1, 3)

-- trap 1, 23: deleting the maximum of the group whose key is NULL finds the next one
CREATE TABLE t (k STRING, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, MAX(x) AS top FROM t GROUP BY k;
-- expect incremental
-- put t
(NULL, 1), (NULL, 5), ('a', 9)
-- apply
-- delete t
(NULL, 5)
-- apply
-- expect v
(NULL, 1), ('a', 9)
-- expect changes v
(NULL, 5, -1), (NULL, 1, 1)

-- trap 2: a row with NULL in some column is cancelled by its delete
CREATE TABLE t (a INT, b STRING, c DATE);
CREATE MATERIALIZED VIEW v AS SELECT a, b, c FROM t WHERE a IS NULL OR a > 0;
-- expect incremental
-- put t
(NULL, NULL, NULL), (1, NULL, DATE'2024-02-29'), (NULL, 'x', NULL)
-- apply
-- delete t
(NULL, NULL, NULL), (1, NULL, DATE'2024-02-29')
-- apply
-- expect v
(NULL, 'x', NULL)

-- trap 2: the update of a row that is NULL but for its key replaces it
CREATE TABLE t (id INT PRIMARY KEY, a INT, b STRING);
CREATE MATERIALIZED VIEW v AS SELECT id, a, b FROM t;
-- expect incremental
-- put t
(1, NULL, NULL)
-- apply
-- put t
(1, 7, NULL)
-- apply
-- expect v
(1, 7, NULL)
-- expect changes v
(1, NULL, NULL, -1), (1, 7, NULL, 1)

-- trap 3: NULL joins nothing under = and NULL under <=>
CREATE TABLE a (k INT, x STRING);
CREATE TABLE b (k INT, y STRING);
CREATE MATERIALIZED VIEW equal AS SELECT x, y FROM a JOIN b ON a.k = b.k;
CREATE MATERIALIZED VIEW null_safe AS SELECT x, y FROM a JOIN b ON a.k <=> b.k;
-- expect incremental equal
-- expect incremental null_safe
-- put a
(NULL, 'a0'), (1, 'a1')
-- put b
(NULL, 'b0'), (1, 'b1')
-- apply
-- expect equal
('a1', 'b1')
-- expect null_safe
('a1', 'b1'), ('a0', 'b0')
-- put b
(NULL, 'b2')
-- delete b
(NULL, 'b0')
-- apply
-- expect equal
('a1', 'b1')
-- expect null_safe
('a1', 'b1'), ('a0', 'b2')

-- trap 3: in an outer join every row with a NULL key stands alone, once each
CREATE TABLE a (k INT, x STRING);
CREATE TABLE b (k INT, y STRING);
CREATE MATERIALIZED VIEW v AS SELECT a.k AS ak, x, b.k AS bk, y FROM a FULL JOIN b ON a.k = b.k;
-- expect incremental
-- put a
(NULL, 'a0'), (NULL, 'a0'), (1, 'a1')
-- put b
(NULL, 'b0'), (1, 'b1')
-- apply
-- expect v
(NULL, 'a0', NULL, NULL), (NULL, 'a0', NULL, NULL), (NULL, NULL, NULL, 'b0'), (1, 'a1', 1, 'b1')
-- delete a
(NULL, 'a0')
-- put b
(NULL, 'b0')
-- apply
-- expect v
(NULL, 'a0', NULL, NULL), (NULL, NULL, NULL, 'b0'), (NULL, NULL, NULL, 'b0'), (1, 'a1', 1, 'b1')

-- trap 4: keys of several columns, some of them NULL
CREATE TABLE t (a INT, b STRING, x INT);
CREATE MATERIALIZED VIEW v AS SELECT a, b, SUM(x) AS s FROM t GROUP BY a, b;
-- expect incremental
-- put t
(1, NULL, 1), (NULL, 'p', 2), (NULL, NULL, 4), (1, 'p', 8)
-- apply
-- put t
(1, NULL, 16), (NULL, NULL, 32)
-- delete t
(NULL, 'p', 2)
-- apply
-- expect v
(1, NULL, 17), (NULL, NULL, 36), (1, 'p', 8)

-- trap 4: structs and arrays as keys of groups and joins
CREATE TABLE t (s STRUCT<a: INT, b: STRING>, l ARRAY<INT>, x INT);
CREATE MATERIALIZED VIEW groups AS SELECT s, l, COUNT(*) AS n FROM t GROUP BY s, l;
CREATE MATERIALIZED VIEW pairs AS SELECT p.x AS px, q.x AS qx FROM t p LEFT JOIN t q ON p.l = q.l AND p.s = q.s AND p.x < q.x;
-- put t
(named_struct('a', 1, 'b', NULL), array(1, NULL), 1), (named_struct('a', 1, 'b', NULL), array(1, NULL), 2), (NULL, array(), 3)
-- apply
-- expect groups
(named_struct('a', 1, 'b', NULL), array(1, NULL), 2), (NULL, CAST(array() AS ARRAY<INT>), 1)
-- expect pairs
(1, 2), (2, NULL), (3, NULL)
-- delete t
(named_struct('a', 1, 'b', NULL), array(1, NULL), 2), (NULL, array(), 3)
-- apply
-- expect groups
(named_struct('a', 1, 'b', NULL), array(1, NULL), 1)
-- expect pairs
(1, NULL)

-- trap 4: a primary key of two columns
CREATE TABLE t (a INT, b STRING, x INT, PRIMARY KEY (a, b));
CREATE MATERIALIZED VIEW v AS SELECT a, SUM(x) AS s FROM t GROUP BY a;
-- expect incremental
-- put t
(1, 'p', 1), (1, 'q', 2), (2, 'p', 4)
-- apply
-- put t
(1, 'q', 20)
-- delete t
(2, 'p')
-- apply
-- expect v
(1, 21)
