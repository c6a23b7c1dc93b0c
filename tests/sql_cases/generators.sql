-- Functions that make rows, and functions of the user.

-- trap 48: explode drops empty and NULL arrays, OUTER keeps their rows
CREATE TABLE t (id INT PRIMARY KEY, l ARRAY<INT>);
CREATE MATERIALIZED VIEW inner_rows AS SELECT id, e FROM t LATERAL VIEW explode(l) x AS e;
CREATE MATERIALIZED VIEW outer_rows AS SELECT id, e FROM t LATERAL VIEW OUTER explode(l) x AS e;
-- expect incremental inner_rows
-- expect incremental outer_rows
-- put t
(1, array(1, 1, NULL)), (2, array()), (3, NULL)
-- apply
-- expect inner_rows
(1, 1), (1, 1), (1, NULL)
-- expect outer_rows
(1, 1), (1, 1), (1, NULL), (2, NULL), (3, NULL)
-- put t
(1, array(1)), (2, array(5))
-- delete t
(3)
-- apply
-- expect inner_rows
(1, 1), (2, 5)
-- expect outer_rows
(1, 1), (2, 5)

-- trap 48: generators in the SELECT list, with positions, and of structs
CREATE TABLE t (id INT PRIMARY KEY, l ARRAY<STRING>, r ARRAY<STRUCT<a: INT, b: STRING>>);
CREATE MATERIALIZED VIEW listed AS SELECT id, posexplode(l) AS (p, e) FROM t;
CREATE MATERIALIZED VIEW opened AS SELECT id, a, b FROM t LATERAL VIEW inline(r) x AS a, b;
-- put t
(1, array('p', 'q'), array(named_struct('a', 1, 'b', 'one'))), (2, NULL, NULL)
-- apply
-- expect listed
(1, 0, 'p'), (1, 1, 'q')
-- expect opened
(1, 1, 'one')
-- put t
(1, array('q'), array(named_struct('a', 2, 'b', NULL), named_struct('a', 2, 'b', NULL)))
-- apply
-- expect listed
(1, 0, 'q')
-- expect opened
(1, 2, NULL), (1, 2, NULL)

-- trap 48: words of a text are counted, and a table function stands in FROM
CREATE TABLE t (id INT PRIMARY KEY, line STRING);
CREATE MATERIALIZED VIEW v AS SELECT word, COUNT(*) AS n FROM t LATERAL VIEW explode(split(line, ' ')) x AS word GROUP BY word;
CREATE MATERIALIZED VIEW w AS SELECT t.id, e.col AS word FROM t, LATERAL explode(split(line, ' ')) AS e;
-- expect incremental v
-- put t
(1, 'a b a'), (2, 'b')
-- apply
-- expect v
('a', 2), ('b', 2)
-- put t
(1, 'c')
-- apply
-- expect v
('c', 1), ('b', 1)
-- expect w
(1, 'c'), (2, 'b')

-- trap 48: a function written in SQL
-- session CREATE OR REPLACE TEMPORARY FUNCTION twice(x INT) RETURNS INT RETURN x * 2
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW v AS SELECT k, SUM(twice(x)) AS s FROM t GROUP BY k;
-- put t
(1, 5), (1, 6)
-- apply
-- expect v
(1, 22)
-- delete t
(1, 5)
-- apply
-- expect v
(1, 12)
