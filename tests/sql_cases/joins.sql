-- Inner joins: both sides change, one table twice, conditions that are not equalities.

-- trap 31: both sides change in one batch, and the new pair counts once
CREATE TABLE a (k INT, x STRING);
CREATE TABLE b (k INT, y STRING);
CREATE MATERIALIZED VIEW v AS SELECT a.k, x, y FROM a JOIN b ON a.k = b.k;
-- expect incremental
-- put a
(1, 'a1')
-- put b
(1, 'b1')
-- apply
-- expect v
(1, 'a1', 'b1')
-- put a
(1, 'a2')
-- put b
(1, 'b2')
-- apply
-- expect v
(1, 'a1', 'b1'), (1, 'a1', 'b2'), (1, 'a2', 'b1'), (1, 'a2', 'b2')
-- delete a
(1, 'a1')
-- delete b
(1, 'b1')
-- apply
-- expect v
(1, 'a2', 'b2')
-- expect changes v
(1, 'a1', 'b1', -1), (1, 'a1', 'b2', -1), (1, 'a2', 'b1', -1)

-- trap 31: three tables change in one batch
CREATE TABLE a (x INT);
CREATE TABLE b (x INT, y INT);
CREATE TABLE c (y INT, z STRING);
CREATE MATERIALIZED VIEW v AS SELECT a.x, b.y, c.z FROM a, b, c WHERE a.x = b.x AND b.y = c.y;
-- expect incremental
-- put a
(1), (1)
-- put b
(1, 2)
-- put c
(2, 'z')
-- apply
-- expect v
(1, 2, 'z'), (1, 2, 'z')
-- delete a
(1)
-- put b
(1, 2)
-- delete c
(2, 'z')
-- put c
(2, 'new')
-- apply
-- expect v
(1, 2, 'new'), (1, 2, 'new')

-- trap 32: a table joined with itself
CREATE TABLE staff (id INT PRIMARY KEY, name STRING, boss INT);
CREATE MATERIALIZED VIEW v AS SELECT e.name, b.name AS boss FROM staff e JOIN staff b ON e.boss = b.id;
-- expect incremental
-- put staff
(1, 'Ada', NULL), (2, 'Bob', 1), (3, 'Cy', 2)
-- apply
-- expect v
('Bob', 'Ada'), ('Cy', 'Bob')
-- put staff
(2, 'Bo', 1), (1, 'Ada', 3)
-- apply
-- expect v
('Bo', 'Ada'), ('Cy', 'Bo'), ('Ada', 'Cy')

-- trap 32: one table in two branches of a union and in a subquery
CREATE TABLE t (id INT PRIMARY KEY, x INT);
CREATE MATERIALIZED VIEW v AS SELECT id, x FROM t WHERE x > 1 UNION ALL SELECT id, -x FROM t WHERE x IN (SELECT id FROM t);
-- expect incremental
-- put t
(1, 2), (2, 5)
-- apply
-- expect v
(1, 2), (2, 5), (1, -2)
-- put t
(5, 1)
-- delete t
(1)
-- apply
-- expect v
(2, 5), (2, -5)

-- trap 38: a cross join and a join on a range
CREATE TABLE a (x INT);
CREATE TABLE b (low INT, high INT);
CREATE MATERIALIZED VIEW product AS SELECT x, low FROM a CROSS JOIN b;
CREATE MATERIALIZED VIEW ranges AS SELECT x, low, high FROM a JOIN b ON x BETWEEN low AND high;
-- expect incremental product
-- put a
(1), (5), (5)
-- put b
(0, 2), (2, 6)
-- apply
-- expect product
(1, 0), (5, 0), (5, 0), (1, 2), (5, 2), (5, 2)
-- expect ranges
(1, 0, 2), (5, 2, 6), (5, 2, 6)
-- delete a
(5)
-- put b
(1, 5)
-- apply
-- expect product
(1, 0), (5, 0), (1, 2), (5, 2), (1, 1), (5, 1)
-- expect ranges
(1, 0, 2), (5, 2, 6), (1, 1, 5), (5, 1, 5)

-- trap 38: the column of FULL JOIN USING is whichever side has it
CREATE TABLE a (k INT, x STRING);
CREATE TABLE b (k INT, y STRING);
CREATE MATERIALIZED VIEW v AS SELECT * FROM a FULL JOIN b USING (k);
-- expect incremental
-- put a
(1, 'a1'), (2, 'a2')
-- put b
(2, 'b2'), (3, 'b3')
-- apply
-- expect v
(1, 'a1', NULL), (2, 'a2', 'b2'), (3, NULL, 'b3')
-- delete a
(2, 'a2')
-- put b
(1, 'b1')
-- apply
-- expect v
(1, 'a1', 'b1'), (2, NULL, 'b2'), (3, NULL, 'b3')

-- trap 38: a natural join on two columns, and columns of one name told apart
CREATE TABLE a (k INT, l INT, x INT);
CREATE TABLE b (l INT, k INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT * FROM a NATURAL JOIN b;
CREATE MATERIALIZED VIEW both AS SELECT a.k AS k, b.k AS k2, a.l, b.l AS l2 FROM a JOIN b ON a.x = b.y;
-- put a
(1, 2, 7), (1, NULL, 7)
-- put b
(2, 1, 7), (3, 1, 8)
-- apply
-- expect v
(1, 2, 7, 7)
-- expect both
(1, 1, 2, 2), (1, 1, NULL, 2)
-- put b
(2, 1, 9)
-- delete a
(1, NULL, 7)
-- apply
-- expect v
(1, 2, 7, 7), (1, 2, 7, 9)
-- expect both
(1, 1, 2, 2)

-- trap 38: what stands in every part of an OR joins
CREATE TABLE t (k INT, x INT);
CREATE TABLE u (k INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT x, y FROM t, u WHERE (t.k = u.k AND x > 1 AND y > 1) OR (x = 9 AND t.k = u.k) OR (t.k = u.k AND y IS NULL);
CREATE MATERIALIZED VIEW w AS SELECT x, y FROM t, u WHERE t.k = u.k AND x > 1 OR t.k = u.k;
CREATE MATERIALIZED VIEW r AS SELECT x FROM t WHERE (k = 1 AND x > 1) OR (k = 1 AND x IS NULL) OR NULL;
-- expect incremental
-- put t
(1, 2), (1, 9), (2, 1), (2, NULL), (NULL, 9)
-- put u
(1, 2), (1, NULL), (2, 0), (NULL, 5)
-- apply
-- expect v
(2, 2), (2, NULL), (9, 2), (9, NULL)
-- expect w
(2, 2), (2, NULL), (9, 2), (9, NULL), (1, 0), (NULL, 0)
-- expect r
(2), (9)
-- delete u
(1, 2)
-- put u
(2, NULL)
-- apply
-- expect v
(2, NULL), (9, NULL), (1, NULL), (NULL, NULL)

-- trap 38: what only looks alike in two parts of an OR is not the same
CREATE TABLE t (k INT, a ARRAY<INT>, m MAP<INT, INT>);
CREATE MATERIALIZED VIEW v AS SELECT k FROM t WHERE exists(a, x -> x > 5) AND k = 1 OR exists(a, x -> x > 1) AND k = 2;
CREATE MATERIALIZED VIEW w AS SELECT k FROM t WHERE exists(a, x -> x > 5) OR exists(a, x -> x > 1);
CREATE MATERIALIZED VIEW r AS SELECT k FROM t WHERE sort_array(a)[0] = 3 AND k < 3 OR sort_array(a, false)[0] = 3 AND k < 3;
-- put t
(1, array(6), NULL), (1, array(3), NULL), (2, array(3), NULL), (2, array(1, 3), NULL), (2, array(1), NULL)
-- apply
-- expect v
(1), (2), (2)
-- expect w
(1), (1), (2), (2)
-- expect r
(1), (2), (2)

-- trap 38: NOT LIKE is not LIKE
CREATE TABLE t (s STRING, x INT);
CREATE MATERIALIZED VIEW v AS SELECT COUNT(*) AS n, SUM(x) AS total, COUNT_IF(s LIKE '%b%c') AS c FROM t WHERE s NOT LIKE 'a%';
-- expect incremental
-- put t
('ab', 1), ('ba', 2), (NULL, 4), ('b_c', 8), ('bcd', 16)
-- apply
-- expect v
(3, 26, 1)
-- delete t
('ba', 2)
-- apply
-- expect v
(2, 24, 1)

-- trap 31: what two columns are compared with does not make them equal, if Spark casts
CREATE TABLE a (s STRING, x INT);
CREATE TABLE b (i INT);
CREATE TABLE c (s STRING);
CREATE MATERIALIZED VIEW joined AS SELECT a.s, c.s AS other FROM a JOIN b ON a.s = b.i JOIN c ON c.s = b.i;
CREATE MATERIALIZED VIEW greatest AS SELECT c.s, MAX(x) AS x FROM a JOIN b ON a.s = b.i JOIN c ON c.s = b.i GROUP BY c.s;
-- expect incremental
-- put a
('1', 1), ('2', 5)
-- put c
('01'), ('1'), ('3')
-- apply
-- put b
(1)
-- apply
-- expect joined
('1', '01'), ('1', '1')
-- expect greatest
('01', 1), ('1', 1)
-- put a
('001', 7)
-- apply
-- expect joined
('1', '01'), ('1', '1'), ('001', '01'), ('001', '1')
-- expect greatest
('01', 7), ('1', 7)
-- delete a
('001', 7)
-- apply
-- expect greatest
('01', 1), ('1', 1)

-- trap 38: HAVING knows the columns that a join by name compares
CREATE TABLE a (k INT, x INT);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT SUM(x) AS s FROM a JOIN b USING (k) HAVING COUNT(*) FILTER (WHERE k > 1) < 2;
CREATE MATERIALIZED VIEW w AS SELECT SUM(y) AS s FROM a RIGHT JOIN b USING (k) HAVING MAX(k) > 1;
-- expect incremental
-- put a
(1, 1), (2, 2)
-- put b
(1, 0), (2, 0), (3, 7)
-- apply
-- expect v
(3)
-- expect w
(7)
-- put b
(2, 1)
-- apply
-- expect v
nothing
-- expect w
(8)

-- trap 38: joins in parentheses
CREATE TABLE s (w INT);
CREATE TABLE h (w INT, k INT);
CREATE TABLE x (k INT, z STRING);
CREATE MATERIALIZED VIEW right_side AS
  SELECT s.w, x.z FROM s LEFT JOIN (h JOIN x ON h.k = x.k) ON s.w = h.w;
CREATE MATERIALIZED VIEW left_side AS
  SELECT s.w, x.z FROM (h JOIN x ON h.k = x.k) JOIN s ON s.w = h.w;
-- expect incremental right_side
-- expect incremental left_side
-- put s
(1), (2), (3)
-- put h
(1, 10), (2, 20)
-- put x
(10, 'a')
-- apply
-- expect right_side
(1, 'a'), (2, NULL), (3, NULL)
-- expect left_side
(1, 'a')
-- put x
(20, 'b')
-- delete h
(1, 10)
-- apply
-- expect right_side
(1, NULL), (2, 'b'), (3, NULL)
-- expect left_side
(2, 'b')
