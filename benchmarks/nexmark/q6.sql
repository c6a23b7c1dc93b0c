-- Average selling price by seller: for each auction with a winner, over it and up to ten of the
-- same seller before it.
CREATE MATERIALIZED VIEW q6 AS
SELECT
    seller,
    auction,
    AVG(final) OVER (
        PARTITION BY seller
        ORDER BY date_time, auction
        ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
    ) AS average
FROM (
    SELECT
        a.id AS auction,
        a.seller,
        b.price AS final,
        b.date_time,
        ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time) AS place
    FROM auction a
    JOIN bid b ON a.id = b.auction
    WHERE b.date_time BETWEEN a.date_time AND a.expires
) AS placed
WHERE place = 1;
