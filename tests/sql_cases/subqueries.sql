-- Semi and anti joins, IN and NOT IN with NULLs, scalar subqueries.

-- trap 34: a semi join keeps the multiplicity of the left and forgets that of the right
CREATE TABLE a (k INT, x STRING);
CREATE TABLE b (k INT);
CREATE MATERIALIZED VIEW v AS SELECT x FROM a LEFT SEMI JOIN b ON a.k = b.k;
-- expect incremental
-- put a
(1, 'a1'), (1, 'a1'), (2, 'a2'), (NULL, 'a0')
-- put b
(1), (1), (NULL)
-- apply
-- expect v
('a1'), ('a1')
-- delete b
(1)
-- apply
-- expect changes v
nothing
-- delete b
(1)
-- put b
(2)
-- apply
-- expect v
('a2')

-- trap 34: an anti join returns what lost its last match
CREATE TABLE a (k INT, x STRING);
CREATE TABLE b (k INT);
CREATE MATERIALIZED VIEW v AS SELECT x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k);
-- expect incremental
-- put a
(1, 'a1'), (1, 'a1'), (NULL, 'a0')
-- put b
(1), (1), (NULL)
-- apply
-- expect v
('a0')
-- delete b
(1)
-- apply
-- expect changes v
nothing
-- delete b
(1)
-- apply
-- expect v
('a0'), ('a1'), ('a1')

-- trap 34: EXISTS with a condition that is not an equality, and both sides changing
CREATE TABLE a (k INT, x INT);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT k, x FROM a WHERE EXISTS (SELECT * FROM b WHERE b.k = a.k AND b.y > a.x);
-- expect incremental
-- put a
(1, 5), (2, 5)
-- put b
(1, 6), (2, 4)
-- apply
-- expect v
(1, 5)
-- put a
(1, 7), (2, 3)
-- delete b
(1, 6)
-- apply
-- expect v
(2, 3)

-- trap 35: NOT IN a set with a NULL is true for nothing
CREATE TABLE a (x INT);
CREATE TABLE b (y INT);
CREATE MATERIALIZED VIEW v AS SELECT x FROM a WHERE x NOT IN (SELECT y FROM b);
-- put a
(1), (2), (NULL)
-- apply
-- expect v
(1), (2), (NULL)
-- put b
(1)
-- apply
-- expect v
(2)
-- put b
(NULL)
-- apply
-- expect v
nothing
-- delete b
(NULL)
-- apply
-- expect v
(2)
-- delete b
(1)
-- apply
-- expect v
(1), (2), (NULL)

-- trap 35: NOT IN a correlated set, where each row sees its own NULL
CREATE TABLE a (k INT, x INT);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT k, x FROM a WHERE x NOT IN (SELECT y FROM b WHERE b.k = a.k);
-- put a
(1, 1), (1, 2), (2, 1), (3, NULL), (1, NULL)
-- put b
(1, 1), (2, NULL)
-- apply
-- expect v
(1, 2), (3, NULL)
-- delete b
(2, NULL), (1, 1)
-- apply
-- expect v
(1, 1), (1, 2), (2, 1), (3, NULL), (1, NULL)

-- Standard SQL says NULL where Spark says false: for x = NULL, and once b holds a NULL for x = 2.
-- trap 35: IN and NOT IN in the SELECT list are what Spark says, which is never NULL
CREATE TABLE a (x INT);
CREATE TABLE b (y INT);
CREATE MATERIALIZED VIEW v AS SELECT x, x IN (SELECT y FROM b) AS found, x NOT IN (SELECT y FROM b) AS lost FROM a;
-- put a
(1), (2), (NULL)
-- apply
-- expect v
(1, false, true), (2, false, true), (NULL, false, true)
-- put b
(1)
-- apply
-- expect v
(1, true, false), (2, false, true), (NULL, false, false)
-- put b
(NULL)
-- apply
-- expect v
(1, true, false), (2, false, false), (NULL, false, false)

-- trap 35: NOT IN beside AND in the SELECT list, where what replaces it holds an OR
CREATE TABLE a (k INT, x INT);
CREATE TABLE b (y INT);
CREATE MATERIALIZED VIEW v AS SELECT k, k > 1 AND x NOT IN (SELECT y FROM b) AS lost, CASE WHEN x NOT IN (SELECT y FROM b) AND k > 1 THEN 'lost' END AS said FROM a;
-- expect incremental
-- put a
(1, 5), (2, 5), (1, 7), (2, 7)
-- apply
-- expect v
(1, FALSE, NULL), (2, TRUE, 'lost'), (1, FALSE, NULL), (2, TRUE, 'lost')
-- put b
(7)
-- apply
-- expect v
(1, FALSE, NULL), (2, TRUE, 'lost'), (1, FALSE, NULL), (2, FALSE, NULL)

-- trap 35: NOT IN over two columns
CREATE TABLE a (x INT, y INT);
CREATE TABLE b (x INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT x, y FROM a WHERE (x, y) NOT IN (SELECT x, y FROM b);
-- put a
(1, 1), (1, 2), (2, 2), (NULL, 3)
-- apply
-- put b
(1, NULL)
-- apply
-- expect v
(2, 2)
-- delete b
(1, NULL)
-- put b
(2, 2)
-- apply
-- expect v
(1, 1), (1, 2), (NULL, 3)

-- trap 36: a scalar subquery without a row is NULL, a correlated count is 0
CREATE TABLE a (k INT);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW v AS
SELECT k, (SELECT MAX(y) FROM b WHERE b.k = a.k) AS top, (SELECT COUNT(*) FROM b WHERE b.k = a.k) AS n, (SELECT SUM(y) FROM b) AS total
FROM a;
-- put a
(1), (2), (NULL)
-- apply
-- expect v
(1, NULL, 0, NULL), (2, NULL, 0, NULL), (NULL, NULL, 0, NULL)
-- put b
(1, 5), (1, 7), (NULL, 1)
-- apply
-- expect v
(1, 7, 2, 13), (2, NULL, 0, 13), (NULL, NULL, 0, 13)
-- delete b
(1, 7), (1, 5)
-- apply
-- expect v
(1, NULL, 0, 1), (2, NULL, 0, 1), (NULL, NULL, 0, 1)

-- trap 36: a scalar subquery with two rows is an error, and the batch leaves no trace
CREATE TABLE a (k INT);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT k, (SELECT y FROM b WHERE b.k = a.k) AS y FROM a;
CREATE MATERIALIZED VIEW other AS SELECT COUNT(*) AS n FROM b;
-- put a
(1), (2)
-- put b
(1, 5), (3, 1), (3, 2)
-- apply
-- expect v
(1, 5), (2, NULL)
-- put b
(1, 6)
-- apply
-- expect error: more than one row
-- expect v
(1, 5), (2, NULL)
-- expect other
(3)
-- put b
(2, 6)
-- apply
-- expect v
(1, 5), (2, 6)
-- expect other
(4)

-- trap 36: EXISTS over an aggregate without groups is always true
CREATE TABLE a (k INT);
CREATE TABLE b (k INT);
CREATE MATERIALIZED VIEW v AS SELECT k FROM a WHERE EXISTS (SELECT COUNT(*) FROM b WHERE b.k = a.k);
-- put a
(1), (2)
-- apply
-- expect v
(1), (2)
-- put b
(1)
-- apply
-- expect v
(1), (2)

-- trap 36: comparison with a correlated aggregate and with one over the whole table
CREATE TABLE t (k INT, x INT);
CREATE MATERIALIZED VIEW above AS SELECT k, x FROM t o WHERE x > (SELECT AVG(x) FROM t i WHERE i.k = o.k);
CREATE MATERIALIZED VIEW top AS SELECT k, x FROM t WHERE x = (SELECT MAX(x) FROM t);
-- expect incremental above
-- put t
(1, 1), (1, 5), (2, 9)
-- apply
-- expect above
(1, 5)
-- expect top
(2, 9)
-- put t
(2, 3), (1, 30)
-- delete t
(1, 1)
-- apply
-- expect above
(1, 30), (2, 9)
-- expect top
(1, 30)

-- trap 36: EXISTS under OR, and under CASE in the SELECT list
CREATE TABLE a (k INT, x INT);
CREATE TABLE b (k INT);
CREATE MATERIALIZED VIEW v AS SELECT k, x, CASE WHEN EXISTS (SELECT 1 FROM b WHERE b.k = a.k) THEN 'in' ELSE 'out' END AS place FROM a WHERE x > 1 OR k IN (SELECT k FROM b);
-- put a
(1, 1), (2, 2)
-- apply
-- expect v
(2, 2, 'out')
-- put b
(1), (2)
-- apply
-- expect v
(1, 1, 'in'), (2, 2, 'in')
-- delete b
(1)
-- apply
-- expect v
(2, 2, 'in')

-- trap 35: IN over a set operation that names nothing outside
CREATE TABLE s (w INT);
CREATE TABLE h (w INT);
CREATE TABLE x (z INT);
CREATE MATERIALIZED VIEW found AS
  SELECT w FROM s WHERE w IN (SELECT w FROM h UNION SELECT z FROM x);
CREATE MATERIALIZED VIEW lost AS
  SELECT w FROM s WHERE w NOT IN (SELECT w FROM h INTERSECT SELECT z FROM x);
CREATE MATERIALIZED VIEW correlated AS
  SELECT w FROM s WHERE EXISTS (SELECT 1 FROM h WHERE h.w = s.w UNION SELECT 1 FROM x WHERE x.z = s.w);
-- expect incremental found
-- expect incremental lost
-- expect recompute UNSUPPORTED_SUBQUERY correlated
-- put s
(1), (2), (3), (NULL)
-- put h
(1), (2)
-- put x
(2)
-- apply
-- expect found
(1), (2)
-- expect lost
(1), (3)
-- put x
(3)
-- delete h
(2)
-- apply
-- expect found
(1), (2), (3)
-- expect lost
(1), (2), (3), (NULL)

-- trap 36: a subquery in the argument of an aggregate
CREATE TABLE t (i INT, k INT);
CREATE TABLE u (i INT, k INT);
CREATE MATERIALIZED VIEW most AS SELECT i, MAX((SELECT MAX(k) FROM u WHERE u.i = t.i)) AS m FROM t GROUP BY i;
CREATE MATERIALIZED VIEW counted AS SELECT SUM((SELECT COUNT(*) FROM u WHERE u.i = t.i)) AS s FROM t;
CREATE MATERIALIZED VIEW v AS SELECT k, COUNT(*) FILTER (WHERE EXISTS (SELECT 1 FROM u WHERE u.i = t.i)) AS n FROM t GROUP BY k HAVING SUM((SELECT COUNT(*) FROM u)) > 1;
-- expect incremental most
-- expect incremental counted
-- expect incremental
-- put t
(1, 1), (1, 2), (2, 1), (NULL, 1)
-- put u
(1, 5), (1, 7)
-- apply
-- expect most
(1, 7), (2, NULL), (NULL, NULL)
-- expect counted
(4)
-- expect v
(1, 1), (2, 1)
-- delete u
(1, 7)
-- put u
(2, NULL)
-- apply
-- expect most
(1, 5), (2, NULL), (NULL, NULL)
-- expect counted
(3)
-- expect v
(1, 2), (2, 1)
-- delete u
(1, 5)
-- delete t
(1, 2)
-- apply
-- expect counted
(1)
-- expect v
(1, 1)

-- trap 36: a subquery in what is grouped by, written, by its name, and by ALL
CREATE TABLE t (i INT, k INT);
CREATE TABLE u (i INT, k INT);
CREATE MATERIALIZED VIEW v AS WITH m AS (SELECT MAX(k) AS v FROM u) SELECT CASE WHEN t.k = (SELECT v FROM m) THEN 'top' ELSE 'rest' END AS c, COUNT(*) AS n FROM t GROUP BY CASE WHEN t.k = (SELECT v FROM m) THEN 'top' ELSE 'rest' END;
CREATE MATERIALIZED VIEW named AS SELECT k IN (SELECT k FROM u) AS known, COUNT(*) AS n FROM t GROUP BY known;
CREATE MATERIALIZED VIEW everything AS SELECT (SELECT MAX(k) FROM u WHERE u.i = t.i) AS m, SUM(k) AS s FROM t GROUP BY ALL;
-- expect incremental v
-- expect incremental named
-- expect incremental everything
-- put t
(1, 3), (1, 4), (2, 4), (3, NULL)
-- put u
(1, 4), (2, 2)
-- apply
-- expect v
('top', 2), ('rest', 2)
-- expect named
(TRUE, 2), (FALSE, 2)
-- expect everything
(4, 7), (2, 4), (NULL, NULL)
-- delete u
(1, 4)
-- apply
-- expect v
('rest', 4)
-- expect named
(FALSE, 4)
-- expect everything
(NULL, 7), (2, 4)
-- delete u
(2, 2)
-- put u
(3, 3)
-- apply
-- expect v
('top', 1), ('rest', 3)
-- expect everything
(NULL, 11), (3, NULL)

-- trap 36: a correlated subquery with LIMIT, and one that groups what several values equal
CREATE TABLE t (i INT);
CREATE TABLE u (i INT, s STRING, k INT);
CREATE MATERIALIZED VIEW v AS SELECT i, (SELECT k FROM u WHERE u.i = t.i ORDER BY k DESC LIMIT 1) AS k FROM t;
CREATE MATERIALIZED VIEW texts AS SELECT i FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.s = t.i GROUP BY u.k HAVING COUNT(*) > 1);
-- expect incremental v
-- expect recompute UNSUPPORTED_SUBQUERY texts
-- put t
(1), (2)
-- put u
(1, '1', 7), (1, '01', 7), (1, '2', 9)
-- apply
-- expect v
(1, 9), (2, NULL)
-- expect texts
(1)
-- delete u
(1, '2', 9)
-- apply
-- expect v
(1, 7), (2, NULL)

-- trap 36: HAVING without GROUP BY decides whether there is a row, whatever is selected
CREATE TABLE a (id INT, k INT, x INT);
CREATE TABLE b (k INT, v INT);
CREATE MATERIALIZED VIEW v AS SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k HAVING COUNT(*) > 1);
CREATE MATERIALIZED VIEW whole AS SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b HAVING COUNT(*) > 2);
CREATE MATERIALIZED VIEW valued AS SELECT id, (SELECT SUM(v) + 1 FROM b HAVING COUNT(*) > 2) AS s FROM a;
CREATE MATERIALIZED VIEW many AS SELECT id FROM a WHERE EXISTS (SELECT b.v FROM b WHERE b.k = a.k GROUP BY b.v HAVING COUNT(*) > a.x);
-- expect recompute UNSUPPORTED_SUBQUERY v
-- expect recompute UNSUPPORTED_SUBQUERY whole
-- expect recompute UNSUPPORTED_SUBQUERY valued
-- expect recompute UNSUPPORTED_SUBQUERY many
-- put a
(1, 1, 1), (2, 2, 0)
-- put b
(1, 5), (1, 5)
-- apply
-- expect v
(1)
-- expect whole
nothing
-- expect valued
(1, NULL), (2, NULL)
-- expect many
(1)

-- trap 35: IN a correlated aggregate, which has a value also where nothing matches
CREATE TABLE a (id INT, k INT, x INT);
CREATE TABLE b (k INT, v INT);
CREATE MATERIALIZED VIEW v AS SELECT id FROM a WHERE x IN (SELECT COUNT(*) FROM b WHERE b.k = a.k);
CREATE MATERIALIZED VIEW other AS SELECT id FROM a WHERE x NOT IN (SELECT MAX(v) FROM b WHERE b.k = a.k);
CREATE MATERIALIZED VIEW largest AS SELECT id FROM a WHERE x IN (SELECT MAX(v) FROM b WHERE b.k = a.k);
-- expect recompute UNSUPPORTED_SUBQUERY v
-- expect recompute UNSUPPORTED_SUBQUERY other
-- expect incremental largest
-- put a
(1, 1, 1), (2, 2, 0), (3, 1, 5)
-- put b
(1, 5)
-- apply
-- expect v
(1), (2)
-- expect other
(1)
-- expect largest
(3)
