-- UNION, INTERSECT and EXCEPT, with and without ALL.

-- trap 37: UNION forgets duplicates until the last one goes
CREATE TABLE a (x INT, y STRING);
CREATE TABLE b (x INT, y STRING);
CREATE MATERIALIZED VIEW v AS SELECT x, y FROM a UNION SELECT x, y FROM b;
-- expect incremental
-- put a
(1, NULL), (1, NULL), (2, 'p')
-- put b
(1, NULL)
-- apply
-- expect v
(1, NULL), (2, 'p')
-- delete a
(1, NULL), (1, NULL)
-- apply
-- expect v
(1, NULL), (2, 'p')
-- delete b
(1, NULL)
-- apply
-- expect v
(2, 'p')

-- trap 37: EXCEPT ALL takes the smaller count from the larger
CREATE TABLE a (x INT);
CREATE TABLE b (x INT);
CREATE MATERIALIZED VIEW v AS SELECT x FROM a EXCEPT ALL SELECT x FROM b;
-- expect incremental
-- put a
(1), (1), (1), (NULL), (NULL)
-- put b
(1), (NULL), (9), (9)
-- apply
-- expect v
(1), (1), (NULL)
-- put b
(1), (1), (1)
-- apply
-- expect v
(NULL)
-- put a
(1), (1), (9)
-- delete b
(NULL)
-- apply
-- expect v
(1), (NULL), (NULL)

-- trap 37: EXCEPT takes every duplicate, and NULL takes NULL
CREATE TABLE a (x INT);
CREATE TABLE b (x INT);
CREATE MATERIALIZED VIEW v AS SELECT x FROM a EXCEPT SELECT x FROM b;
-- expect incremental
-- put a
(1), (1), (NULL), (2)
-- put b
(1), (NULL)
-- apply
-- expect v
(2)
-- delete b
(1), (NULL)
-- put b
(2)
-- apply
-- expect v
(1), (NULL)

-- trap 37: INTERSECT with and without ALL
CREATE TABLE a (x INT);
CREATE TABLE b (x INT);
CREATE MATERIALIZED VIEW every AS SELECT x FROM a INTERSECT ALL SELECT x FROM b;
CREATE MATERIALIZED VIEW different AS SELECT x FROM a INTERSECT SELECT x FROM b;
-- expect incremental every
-- expect incremental different
-- put a
(1), (1), (1), (NULL), (2)
-- put b
(1), (1), (NULL), (NULL)
-- apply
-- expect every
(1), (1), (NULL)
-- expect different
(1), (NULL)
-- delete b
(1), (NULL), (NULL)
-- put b
(2), (2)
-- apply
-- expect every
(1), (2)
-- expect different
(1), (2)

-- trap 37: columns meet by position and take the wider type
CREATE TABLE a (x INT, y DECIMAL(4, 1));
CREATE TABLE b (y BIGINT, x DECIMAL(6, 3));
CREATE MATERIALIZED VIEW v AS SELECT x, y FROM a EXCEPT SELECT y, x FROM b;
CREATE MATERIALIZED VIEW u AS SELECT x, y FROM a UNION SELECT y, x FROM b;
-- put a
(1, 1.5), (2, 2.0)
-- put b
(1, 1.500), (7000000000, 0.125)
-- apply
-- expect v
(2, 2.0)
-- expect u
(1, 1.5), (2, 2.0), (7000000000, 0.125)
-- delete b
(1, 1.500)
-- put b
(2, 2.000)
-- apply
-- expect v
(1, 1.5)
-- expect u
(1, 1.5), (2, 2.0), (7000000000, 0.125)

-- trap 37: several set operations in one query, INTERSECT binding first
CREATE TABLE a (x INT);
CREATE TABLE b (x INT);
CREATE TABLE c (x INT);
CREATE MATERIALIZED VIEW v AS SELECT x FROM a UNION ALL SELECT x FROM b INTERSECT SELECT x FROM c;
-- put a
(1), (1)
-- put b
(2), (2), (3)
-- put c
(2), (3)
-- apply
-- expect v
(1), (1), (2), (3)
-- delete a
(1)
-- delete b
(2)
-- delete c
(3)
-- apply
-- expect v
(1), (2)
