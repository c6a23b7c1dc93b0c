-- Find the last bid of each bidder in each auction.
CREATE MATERIALIZED VIEW q18 AS
SELECT auction, bidder, price, channel, url, date_time, extra
FROM (
    SELECT
        *,
        ROW_NUMBER() OVER (
            PARTITION BY bidder, auction
            ORDER BY date_time DESC, price DESC, channel, url, extra
        ) AS place
    FROM bid
) AS placed
WHERE place <= 1;
