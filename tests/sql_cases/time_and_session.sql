-- What depends on the clock, on chance, or on the settings of a session.

-- trap 41: a view that draws by chance is refused
CREATE TABLE t (x INT);
CREATE MATERIALIZED VIEW v AS SELECT x, rand() AS r FROM t;
-- expect error: rand

-- trap 41: a view that makes ids is refused
CREATE TABLE t (x INT);
CREATE MATERIALIZED VIEW v AS SELECT x, uuid() AS id FROM t;
-- expect error: uuid

-- trap 41: a view that numbers rows by where they lie is refused
CREATE TABLE t (x INT);
CREATE MATERIALIZED VIEW v AS SELECT x, monotonically_increasing_id() AS id FROM t;
-- expect error: monotonically_increasing_id

-- trap 41: a filter on the current time is recomputed, and says why
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP);
CREATE MATERIALIZED VIEW v AS SELECT id FROM t WHERE ts > now() - INTERVAL 7 DAYS;
-- expect recompute TIME_DEPENDENT
-- put t
(1, TIMESTAMP'2000-01-01 00:00:00'), (2, TIMESTAMP'2200-01-01 00:00:00'), (3, now())
-- apply
-- expect v
(2), (3)
-- put t
(2, TIMESTAMP'2000-01-01 00:00:00')
-- apply
-- expect v
(3)

-- trap 41: a text that Spark takes for the time at which it reads it is refused
CREATE TABLE t (d DATE);
CREATE MATERIALIZED VIEW v AS SELECT d FROM t WHERE d < DATE 'today';
-- expect error: reads the clock

-- trap 41: such a text is refused where it is cast, too
CREATE TABLE t (ts TIMESTAMP);
CREATE VIEW v AS SELECT ts FROM t WHERE ts < CAST(' Now' AS TIMESTAMP);
-- expect error: reads the clock

-- trap 41: and where Spark casts it by itself
CREATE TABLE t (d DATE);
CREATE MATERIALIZED VIEW v AS SELECT d FROM t WHERE d < 'tomorrow';
-- expect error: reads the clock

-- trap 41: the same words mean nothing elsewhere
CREATE TABLE t (d DATE, today STRING);
CREATE MATERIALIZED VIEW v AS SELECT CAST(today AS DATE) AS d FROM t WHERE today <> 'today' AND d > DATE '2000-01-01';
-- expect incremental
-- put t
(DATE'2020-01-01', '2021-01-01'), (DATE'2020-01-01', 'today')
-- apply
-- expect v
(DATE'2021-01-01')

-- trap 41: the current date in an aggregate
CREATE TABLE t (id INT PRIMARY KEY, d DATE);
CREATE MATERIALIZED VIEW v AS SELECT COUNT(*) AS n, COUNT_IF(d < current_date()) AS past FROM t;
-- expect recompute TIME_DEPENDENT
-- put t
(1, DATE'2000-01-01'), (2, DATE'2200-01-01')
-- apply
-- expect v
(2, 1)
-- apply
-- expect changes v
nothing

-- trap 42: another time zone in the session does not change what a view means
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP);
CREATE MATERIALIZED VIEW v AS SELECT CAST(ts AS DATE) AS d, COUNT(*) AS n FROM t GROUP BY CAST(ts AS DATE);
-- put t
(1, TIMESTAMP'2024-01-01 23:30:00 UTC'), (2, TIMESTAMP'2024-01-01 12:00:00 UTC')
-- apply
-- session SET spark.sql.session.timeZone = Pacific/Auckland
-- put t
(3, TIMESTAMP'2024-01-01 23:45:00 UTC')
-- apply
-- session SET spark.sql.session.timeZone = UTC
-- expect v
(DATE'2024-01-01', 3)

-- trap 42: the session turning ANSI mode off does not turn an error into a NULL
CREATE TABLE t (id INT PRIMARY KEY, s STRING);
CREATE MATERIALIZED VIEW v AS SELECT SUM(CAST(s AS INT)) AS n FROM t;
-- put t
(1, '10')
-- apply
-- session SET spark.sql.ansi.enabled = false
-- put t
(2, 'ten')
-- apply
-- expect error: CAST_INVALID_INPUT
-- session SET spark.sql.ansi.enabled = true
-- expect v
(10)

-- trap 42: a session that starts in another time zone computes in UTC as well
-- session SET spark.sql.session.timeZone = America/New_York
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP);
CREATE MATERIALIZED VIEW v AS SELECT HOUR(ts) AS h, COUNT(*) AS n FROM t GROUP BY HOUR(ts);
-- put t
(1, TIMESTAMP'2024-01-01 23:30:00 UTC'), (2, TIMESTAMP'2024-07-01 23:45:00 UTC')
-- apply
-- expect v
(23, 2)
-- delete t
(1)
-- apply
-- expect v
(23, 1)

-- trap 42: hours of a day on which the clocks change
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP, local TIMESTAMP_NTZ);
CREATE MATERIALIZED VIEW v AS
SELECT CAST(from_utc_timestamp(ts, 'Europe/Berlin') AS DATE) AS day, COUNT(*) AS n, COUNT(DISTINCT date_trunc('HOUR', local)) AS hours
FROM t GROUP BY CAST(from_utc_timestamp(ts, 'Europe/Berlin') AS DATE);
-- put t
(1, TIMESTAMP'2024-03-31 00:30:00', TIMESTAMP_NTZ'2024-03-31 01:30:00'), (2, TIMESTAMP'2024-03-31 01:30:00', TIMESTAMP_NTZ'2024-03-31 03:30:00'), (3, TIMESTAMP'2024-03-31 22:30:00', TIMESTAMP_NTZ'2024-04-01 00:30:00')
-- apply
-- expect v
(DATE'2024-03-31', 2, 2), (DATE'2024-04-01', 1, 1)
-- delete t
(1), (3)
-- apply
-- expect v
(DATE'2024-03-31', 1, 1)

-- trap 42: windows of ten minutes
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP, x INT);
CREATE MATERIALIZED VIEW v AS SELECT window.start AS start, SUM(x) AS s FROM t GROUP BY window(ts, '10 minutes');
-- expect incremental
-- put t
(1, TIMESTAMP'2024-01-01 00:01:00', 1), (2, TIMESTAMP'2024-01-01 00:09:59', 2), (3, TIMESTAMP'2024-01-01 00:10:00', 4)
-- apply
-- expect v
(TIMESTAMP'2024-01-01 00:00:00', 3), (TIMESTAMP'2024-01-01 00:10:00', 4)
-- delete t
(2)
-- apply
-- expect v
(TIMESTAMP'2024-01-01 00:00:00', 1), (TIMESTAMP'2024-01-01 00:10:00', 4)

-- trap 42: windows that overlap, of which HAVING and the result know begin and end
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP, x INT);
CREATE MATERIALIZED VIEW v AS SELECT x, window.start AS start, COUNT(*) AS n FROM t GROUP BY x, window(ts, '10 minutes', '5 minutes') HAVING window.end > TIMESTAMP'2024-01-01 00:06:00' ;
CREATE MATERIALIZED VIEW whole AS SELECT window, MAX(x) AS x FROM t GROUP BY window(ts, '10 minutes', '10 minutes', '1 minute');
-- expect incremental
-- put t
(1, TIMESTAMP'2024-01-01 00:01:00', 1), (2, TIMESTAMP'2024-01-01 00:09:59', 1), (3, NULL, 4)
-- apply
-- expect v
(1, TIMESTAMP'2024-01-01 00:00:00', 2), (1, TIMESTAMP'2024-01-01 00:05:00', 1)
-- delete t
(2)
-- put t
(3, TIMESTAMP'2024-01-01 00:00:59', 4)
-- apply
-- expect v
(1, TIMESTAMP'2024-01-01 00:00:00', 1), (4, TIMESTAMP'2024-01-01 00:00:00', 1)
-- expect whole
(named_struct('start', TIMESTAMP'2023-12-31 23:51:00', 'end', TIMESTAMP'2024-01-01 00:01:00'), 4), (named_struct('start', TIMESTAMP'2024-01-01 00:01:00', 'end', TIMESTAMP'2024-01-01 00:11:00'), 1)

-- trap 42: windows of two queries that are joined
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP, x INT);
CREATE MATERIALIZED VIEW v AS
  WITH most AS (SELECT window.start AS start, window.end AS end, MAX(x) AS x FROM t GROUP BY window(ts, '10 minutes'))
  SELECT t.id, most.start FROM t JOIN most ON t.x = most.x AND t.ts >= most.start AND t.ts < most.end;
-- expect incremental
-- put t
(1, TIMESTAMP'2024-01-01 00:01:00', 1), (2, TIMESTAMP'2024-01-01 00:02:00', 5), (3, TIMESTAMP'2024-01-01 00:12:00', 2)
-- apply
-- expect v
(2, TIMESTAMP'2024-01-01 00:00:00'), (3, TIMESTAMP'2024-01-01 00:10:00')
-- delete t
(2)
-- apply
-- expect v
(1, TIMESTAMP'2024-01-01 00:00:00'), (3, TIMESTAMP'2024-01-01 00:10:00')

-- trap 42: a window that is not grouped by makes rows, also where nobody asks for it
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP);
CREATE MATERIALIZED VIEW v AS SELECT id FROM (SELECT id, window(ts, '10 minutes', '5 minutes') AS w FROM t);
-- expect incremental
-- put t
(1, TIMESTAMP'2024-01-01 00:01:00'), (2, NULL)
-- apply
-- expect v
(1), (1)
-- put t
(2, TIMESTAMP'2024-01-01 00:01:00')
-- delete t
(1)
-- apply
-- expect v
(2), (2)

-- trap 42: windows in SELECT, DISTINCT, WHERE, aggregates and keys, once for each clause
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP, x INT);
CREATE MATERIALIZED VIEW listed AS SELECT id, window(ts, '10 minutes').start AS s, window(ts, '10 minutes').end AS e FROM t;
CREATE MATERIALIZED VIEW named AS SELECT window.start AS s FROM (SELECT window(ts, '10 minutes') FROM t WHERE x > 0);
CREATE MATERIALIZED VIEW known AS SELECT DISTINCT window(ts, '10 minutes').start AS s FROM t;
CREATE MATERIALIZED VIEW chosen AS SELECT id FROM t WHERE window(ts, '10 minutes', '5 minutes').start >= TIMESTAMP'2024-01-01 00:00:00' AND x > 0;
CREATE MATERIALIZED VIEW twice AS SELECT id, window(ts, '10 minutes', '5 minutes').start AS s FROM t WHERE window(ts, '10 minutes', '5 minutes').start >= TIMESTAMP'2024-01-01 00:05:00';
CREATE MATERIALIZED VIEW latest AS SELECT x, MAX(window(ts, '10 minutes').end) AS e FROM t GROUP BY x;
CREATE MATERIALIZED VIEW v AS SELECT window(ts, '10 minutes').start AS s, COUNT(*) AS n FROM t GROUP BY window(ts, '10 minutes').start;
-- expect incremental listed
-- expect incremental named
-- expect incremental known
-- expect incremental chosen
-- expect incremental twice
-- expect incremental latest
-- expect incremental
-- put t
(1, TIMESTAMP'2024-01-01 00:01:00', 1), (2, TIMESTAMP'2024-01-01 00:09:00', 1), (3, NULL, 2), (4, TIMESTAMP'2024-01-01 00:12:00', 0)
-- apply
-- expect listed
(1, TIMESTAMP'2024-01-01 00:00:00', TIMESTAMP'2024-01-01 00:10:00'), (2, TIMESTAMP'2024-01-01 00:00:00', TIMESTAMP'2024-01-01 00:10:00'), (4, TIMESTAMP'2024-01-01 00:10:00', TIMESTAMP'2024-01-01 00:20:00')
-- expect named
(TIMESTAMP'2024-01-01 00:00:00'), (TIMESTAMP'2024-01-01 00:00:00')
-- expect known
(TIMESTAMP'2024-01-01 00:00:00'), (TIMESTAMP'2024-01-01 00:10:00')
-- expect chosen
(1), (2), (2)
-- expect twice
(2, TIMESTAMP'2024-01-01 00:00:00'), (2, TIMESTAMP'2024-01-01 00:05:00'), (4, TIMESTAMP'2024-01-01 00:05:00'), (4, TIMESTAMP'2024-01-01 00:10:00'), (4, TIMESTAMP'2024-01-01 00:05:00'), (4, TIMESTAMP'2024-01-01 00:10:00')
-- expect latest
(1, TIMESTAMP'2024-01-01 00:10:00'), (0, TIMESTAMP'2024-01-01 00:20:00')
-- expect v
(TIMESTAMP'2024-01-01 00:00:00', 2), (TIMESTAMP'2024-01-01 00:10:00', 1)
-- delete t
(2), (4)
-- put t
(3, TIMESTAMP'2024-01-01 00:21:00', 2)
-- apply
-- expect known
(TIMESTAMP'2024-01-01 00:00:00'), (TIMESTAMP'2024-01-01 00:20:00')
-- expect chosen
(1), (3), (3)
-- expect latest
(1, TIMESTAMP'2024-01-01 00:10:00'), (2, TIMESTAMP'2024-01-01 00:30:00')
-- expect v
(TIMESTAMP'2024-01-01 00:00:00', 1), (TIMESTAMP'2024-01-01 00:20:00', 1)

-- trap 42: a time window beside window functions is left to Spark
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP);
CREATE MATERIALIZED VIEW v AS SELECT id, window(ts, '10 minutes').start AS s, ROW_NUMBER() OVER (PARTITION BY ts ORDER BY id) AS n FROM t;
-- expect recompute UNSUPPORTED_OPERATOR
-- put t
(1, TIMESTAMP'2024-01-01 00:01:00'), (2, NULL)
-- apply
-- expect v
(1, TIMESTAMP'2024-01-01 00:00:00', 1)

-- trap 42: sessions grow together, and are left to Spark
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP);
CREATE MATERIALIZED VIEW v AS SELECT session_window.start AS start, COUNT(*) AS n FROM t GROUP BY session_window(ts, '5 minutes');
-- expect recompute UNSUPPORTED_OPERATOR
-- put t
(1, TIMESTAMP'2024-01-01 00:01:00'), (2, TIMESTAMP'2024-01-01 00:08:00')
-- apply
-- expect v
(TIMESTAMP'2024-01-01 00:01:00', 1), (TIMESTAMP'2024-01-01 00:08:00', 1)
-- put t
(3, TIMESTAMP'2024-01-01 00:05:00')
-- apply
-- expect v
(TIMESTAMP'2024-01-01 00:01:00', 3)

-- trap 42: windows that overlap, in what is aggregated
CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP, x INT);
CREATE MATERIALIZED VIEW v AS SELECT window.start AS start, COUNT(*) AS n, MAX(window.end) AS last, COUNT(*) FILTER (WHERE ts > window.start + INTERVAL 5 MINUTES) AS late FROM t GROUP BY window(ts, '10 minutes', '5 minutes');
-- expect incremental
-- put t
(1, TIMESTAMP'2024-01-01 00:07:00', 1)
-- apply
-- expect v
(TIMESTAMP'2024-01-01 00:00:00', 1, TIMESTAMP'2024-01-01 00:10:00', 1), (TIMESTAMP'2024-01-01 00:05:00', 1, TIMESTAMP'2024-01-01 00:15:00', 0)
-- put t
(1, TIMESTAMP'2024-01-01 00:06:00', 1), (2, TIMESTAMP'2024-01-01 00:11:00', 1)
-- apply
-- expect v
(TIMESTAMP'2024-01-01 00:00:00', 1, TIMESTAMP'2024-01-01 00:10:00', 1), (TIMESTAMP'2024-01-01 00:05:00', 2, TIMESTAMP'2024-01-01 00:15:00', 1), (TIMESTAMP'2024-01-01 00:10:00', 1, TIMESTAMP'2024-01-01 00:20:00', 0)

-- trap 42: a table that is called window is no window
CREATE TABLE t (start INT, ts TIMESTAMP);
CREATE MATERIALIZED VIEW v AS SELECT MAX(`window`.start) AS m FROM t AS `window` GROUP BY window(ts, '10 minutes');
-- expect recompute UNSUPPORTED_OPERATOR

-- trap 41: a text that a function takes for a time is refused
CREATE TABLE t (d DATE);
CREATE MATERIALIZED VIEW v AS SELECT d FROM t WHERE d < to_date('today');
-- expect error: reads the clock

-- trap 42: fields of a struct beside a time window
CREATE TABLE t (ts TIMESTAMP, q STRUCT<a: STRUCT<b: INT>>);
CREATE MATERIALIZED VIEW v AS SELECT window.start AS start, SUM(t.q.a.b) AS b FROM t GROUP BY window(t.ts, '10 minutes');
-- expect incremental
-- put t
(TIMESTAMP'2024-01-01 00:07:00', named_struct('a', named_struct('b', 3)))
-- apply
-- expect v
(TIMESTAMP'2024-01-01 00:00:00', 3)
