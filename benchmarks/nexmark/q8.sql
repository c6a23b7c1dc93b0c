-- Monitor new users: who opened an auction within the 10 seconds in which they joined.
CREATE MATERIALIZED VIEW q8 AS
SELECT p.id, p.name, p.window_start
FROM (
    SELECT id, name, window.start AS window_start
    FROM person
    GROUP BY id, name, window(date_time, '10 seconds')
) AS p
JOIN (
    SELECT seller, window.start AS window_start
    FROM auction
    GROUP BY seller, window(date_time, '10 seconds')
) AS a
    ON p.id = a.seller AND p.window_start = a.window_start;
