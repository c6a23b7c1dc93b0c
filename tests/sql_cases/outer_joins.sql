-- Joins that keep what has no match: rows of NULLs come and go with the first and the last match.

-- trap 33: the first match takes the NULL row away, the last one to go restores it
CREATE TABLE a (k INT, x STRING);
CREATE TABLE b (k INT, y STRING);
CREATE MATERIALIZED VIEW v AS SELECT x, y FROM a LEFT JOIN b ON a.k = b.k;
-- expect incremental
-- put a
(1, 'a1'), (1, 'a1'), (2, 'a2')
-- apply
-- expect v
('a1', NULL), ('a1', NULL), ('a2', NULL)
-- put b
(1, 'b1'), (1, 'b1')
-- apply
-- expect v
('a1', 'b1'), ('a1', 'b1'), ('a1', 'b1'), ('a1', 'b1'), ('a2', NULL)
-- delete b
(1, 'b1')
-- apply
-- expect v
('a1', 'b1'), ('a1', 'b1'), ('a2', NULL)
-- delete b
(1, 'b1')
-- apply
-- expect v
('a1', NULL), ('a1', NULL), ('a2', NULL)

-- trap 33: the last match goes and another comes in the same batch
CREATE TABLE a (k INT, x STRING);
CREATE TABLE b (id INT PRIMARY KEY, k INT, y STRING);
CREATE MATERIALIZED VIEW v AS SELECT x, y FROM b RIGHT JOIN a ON a.k = b.k;
-- expect incremental
-- put a
(1, 'a1'), (2, 'a2')
-- put b
(1, 1, 'b1')
-- apply
-- put b
(1, 2, 'b1'), (2, 1, 'b2')
-- apply
-- expect v
('a1', 'b2'), ('a2', 'b1')
-- put b
(2, 3, 'b2')
-- put a
(3, 'a3')
-- apply
-- expect v
('a1', NULL), ('a2', 'b1'), ('a3', 'b2')

-- trap 33: a full join while both sides change
CREATE TABLE a (id INT PRIMARY KEY, k INT);
CREATE TABLE b (id INT PRIMARY KEY, k INT);
CREATE MATERIALIZED VIEW v AS SELECT a.id AS ai, b.id AS bi FROM a FULL OUTER JOIN b ON a.k = b.k;
-- expect incremental
-- put a
(1, 1)
-- put b
(1, 2)
-- apply
-- expect v
(1, NULL), (NULL, 1)
-- put a
(1, 2)
-- put b
(1, 1)
-- apply
-- expect v
(1, NULL), (NULL, 1)
-- expect changes v
nothing
-- put a
(2, 1)
-- delete b
(1)
-- put b
(9, 2)
-- apply
-- expect v
(1, 9), (2, NULL)

-- trap 33: an outer join on an inequality
CREATE TABLE a (x INT);
CREATE TABLE b (y INT);
CREATE MATERIALIZED VIEW v AS SELECT x, y FROM a LEFT JOIN b ON x < y;
-- put a
(1), (5)
-- put b
(3)
-- apply
-- expect v
(1, 3), (5, NULL)
-- put b
(9)
-- delete b
(3)
-- apply
-- expect v
(1, 9), (5, 9)

-- trap 33: a condition on the kept side decides about matches, not about rows
CREATE TABLE a (k INT, x INT);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT a.k, x, y FROM a LEFT JOIN b ON a.k = b.k AND a.x > 10;
-- expect incremental
-- put a
(1, 5), (1, 50)
-- put b
(1, 7)
-- apply
-- expect v
(1, 5, NULL), (1, 50, 7)
-- delete b
(1, 7)
-- apply
-- expect v
(1, 5, NULL), (1, 50, NULL)

-- trap 33: WHERE on the side that may be NULL
CREATE TABLE a (k INT);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW lonely AS SELECT a.k FROM a LEFT JOIN b ON a.k = b.k WHERE b.k IS NULL;
CREATE MATERIALIZED VIEW paired AS SELECT a.k, y FROM a LEFT JOIN b ON a.k = b.k WHERE y > 0;
-- put a
(1), (2)
-- put b
(1, 5)
-- apply
-- expect lonely
(2)
-- expect paired
(1, 5)
-- put b
(2, -1)
-- delete b
(1, 5)
-- apply
-- expect lonely
(1)
-- expect paired
nothing

-- trap 33: COUNT(*) counts the NULL row, COUNT of a column of the other side does not
CREATE TABLE a (k INT, x STRING);
CREATE TABLE b (k INT, y INT);
CREATE MATERIALIZED VIEW v AS SELECT x, COUNT(*) AS every, COUNT(b.k) AS matched, SUM(y) AS s FROM a LEFT JOIN b ON a.k = b.k GROUP BY x;
-- expect incremental
-- put a
(1, 'a1'), (2, 'a2')
-- apply
-- expect v
('a1', 1, 0, NULL), ('a2', 1, 0, NULL)
-- put b
(1, 10), (1, 20)
-- apply
-- expect v
('a1', 2, 2, 30), ('a2', 1, 0, NULL)
-- delete b
(1, 10), (1, 20)
-- apply
-- expect v
('a1', 1, 0, NULL), ('a2', 1, 0, NULL)

-- trap 33: two outer joins in a row
CREATE TABLE a (x INT);
CREATE TABLE b (x INT, y INT);
CREATE TABLE c (y INT, z STRING);
CREATE MATERIALIZED VIEW v AS SELECT a.x, b.y, z FROM a LEFT JOIN b ON a.x = b.x LEFT JOIN c ON b.y = c.y;
-- expect incremental
-- put a
(1), (2)
-- put b
(1, 10)
-- apply
-- expect v
(1, 10, NULL), (2, NULL, NULL)
-- put c
(10, 'z'), (NULL, 'never')
-- delete b
(1, 10)
-- put b
(2, 10)
-- apply
-- expect v
(1, NULL, NULL), (2, 10, 'z')

-- trap 33: many left joins of one table, all sides changing at once, with and without matches
CREATE TABLE f (id INT NOT NULL PRIMARY KEY, a INT, b INT, c INT);
CREATE TABLE da (a INT NOT NULL PRIMARY KEY, x STRING);
CREATE TABLE db (b INT, y STRING);
CREATE TABLE dc (c INT, z INT);
CREATE MATERIALIZED VIEW v AS SELECT id, x, y, z FROM f LEFT JOIN da ON f.a = da.a LEFT JOIN db ON f.b = db.b LEFT JOIN dc ON f.c = dc.c AND z > 0;
-- expect incremental
-- put f
(1, 1, 1, 1), (2, 2, NULL, 1), (3, NULL, 9, 2)
-- put da
(1, 'a1')
-- put db
(1, 'b1'), (1, 'b1')
-- put dc
(1, 5), (2, -5)
-- apply
-- expect v
(1, 'a1', 'b1', 5), (1, 'a1', 'b1', 5), (2, NULL, NULL, 5), (3, NULL, NULL, NULL)
-- put f
(1, 2, 1, 2), (4, 1, 9, 1)
-- delete f
(2)
-- put da
(1, 'A1'), (2, 'a2')
-- delete db
(1, 'b1')
-- put db
(9, 'b9'), (NULL, 'never')
-- put dc
(1, 6), (2, 7)
-- delete dc
(2, -5)
-- apply
-- expect v
(1, 'a2', 'b1', 7), (3, NULL, 'b9', 7), (4, 'A1', 'b9', 5), (4, 'A1', 'b9', 6)
-- delete da
(1)
-- delete db
(1, 'b1'), (9, 'b9')
-- delete dc
(1, 5), (1, 6), (2, 7)
-- apply
-- expect v
(1, 'a2', NULL, NULL), (3, NULL, NULL, NULL), (4, NULL, NULL, NULL)

-- trap 33: a left join by a column that another left join may have left NULL, and semi joins on top
CREATE TABLE a (k INT, x INT);
CREATE TABLE b (x INT, y INT);
CREATE TABLE c (y INT, z STRING);
CREATE TABLE d (z STRING);
CREATE MATERIALIZED VIEW known AS SELECT k, b.y, z FROM a LEFT JOIN b ON a.x = b.x LEFT JOIN c ON b.y = c.y WHERE EXISTS (SELECT 1 FROM d WHERE d.z = c.z);
CREATE MATERIALIZED VIEW unknown AS SELECT k, b.y, z FROM a LEFT JOIN b ON a.x = b.x LEFT JOIN c ON b.y <=> c.y WHERE NOT EXISTS (SELECT 1 FROM d WHERE d.z = c.z AND d.z <> 'q');
-- expect incremental known
-- expect incremental unknown
-- put a
(1, 1), (2, 2), (2, 2)
-- put b
(1, 10)
-- put c
(10, 'z'), (NULL, 'null')
-- put d
('z'), ('z')
-- apply
-- expect known
(1, 10, 'z')
-- expect unknown
(2, NULL, 'null'), (2, NULL, 'null')
-- put b
(2, 10)
-- delete d
('z')
-- apply
-- expect known
(1, 10, 'z'), (2, 10, 'z'), (2, 10, 'z')
-- expect unknown
nothing
-- delete d
('z')
-- put d
('q'), ('null')
-- delete b
(1, 10)
-- put c
(10, 'q')
-- apply
-- expect known
(2, 10, 'q'), (2, 10, 'q')
-- expect unknown
(2, 10, 'q'), (2, 10, 'q'), (2, 10, 'z'), (2, 10, 'z')

-- trap 33: an inner join over left joins, by a column of the left side, and of the right side
CREATE TABLE a (k INT, x INT, y INT);
CREATE TABLE b (x INT, z INT);
CREATE TABLE c (y INT, u STRING);
CREATE MATERIALIZED VIEW by_left AS SELECT k, z, u FROM (SELECT k, y, z * 2 AS z FROM a LEFT JOIN b ON a.x = b.x) q JOIN c ON q.y = c.y;
CREATE MATERIALIZED VIEW by_right AS SELECT k, z, u FROM a LEFT JOIN b ON a.x = b.x JOIN c ON b.z = c.y;
-- expect incremental by_left
-- expect incremental by_right
-- put a
(1, 1, 1), (2, 2, 1), (3, 1, 7)
-- put b
(1, 1)
-- put c
(1, 'c1')
-- apply
-- expect by_left
(1, 2, 'c1'), (2, NULL, 'c1')
-- expect by_right
(1, 1, 'c1'), (3, 1, 'c1')
-- put b
(2, 7), (1, 7)
-- put c
(7, 'c7')
-- delete a
(1, 1, 1)
-- apply
-- expect by_left
(2, 14, 'c1'), (3, 2, 'c7'), (3, 14, 'c7')
-- expect by_right
(2, 7, 'c7'), (3, 1, 'c1'), (3, 7, 'c7')

-- trap 33: a full join that compares one column with two of the other side
CREATE TABLE a (i INT, n BIGINT, m DECIMAL(8,2));
CREATE TABLE b (i INT);
CREATE MATERIALIZED VIEW v AS SELECT x.i, y.m, y.n FROM a x FULL JOIN (SELECT m, n FROM a LEFT ANTI JOIN b ON a.i = b.i) y ON x.i = y.m AND x.i = y.n;
-- expect incremental
-- put a
(1, NULL, 2.25), (7, 7, 7), (8, 7, 8)
-- put b
(1), (7), (8)
-- apply
-- expect v
(1, NULL, NULL), (7, NULL, NULL), (8, NULL, NULL)
-- delete b
(1), (7), (8)
-- apply
-- expect v
(1, NULL, NULL), (NULL, 2.25, NULL), (7, 7, 7), (8, NULL, NULL), (NULL, 8, 7)
-- delete a
(7, 7, 7)
-- apply
-- expect v
(1, NULL, NULL), (NULL, 2.25, NULL), (8, NULL, NULL), (NULL, 8, 7)
