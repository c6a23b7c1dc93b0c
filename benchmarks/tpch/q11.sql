-- Which parts make up a good share of a nation's stock. NATION = GERMANY, FRACTION = 0.0001.
-- The standard divides FRACTION by the scale factor. A view cannot know the scale, so it is that
-- of scale factor 1 here: more parts pass at smaller scales, fewer at larger ones.
CREATE MATERIALIZED VIEW q11 AS
SELECT ps_partkey, SUM(ps_supplycost * ps_availqty) AS value
FROM partsupp, supplier, nation
WHERE ps_suppkey = s_suppkey
    AND s_nationkey = n_nationkey
    AND n_name = 'GERMANY'
GROUP BY ps_partkey
HAVING SUM(ps_supplycost * ps_availqty) > (
    SELECT SUM(ps_supplycost * ps_availqty) * 0.0001
    FROM partsupp, supplier, nation
    WHERE ps_suppkey = s_suppkey
        AND s_nationkey = n_nationkey
        AND n_name = 'GERMANY'
)
ORDER BY value DESC;
