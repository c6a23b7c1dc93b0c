-- Auction top ten: the ten highest bids of each auction, with their places.
CREATE MATERIALIZED VIEW q19 AS
SELECT auction, bidder, price, channel, url, date_time, extra, place
FROM (
    SELECT
        *,
        ROW_NUMBER() OVER (
            PARTITION BY auction
            ORDER BY price DESC, date_time, bidder, channel, url, extra
        ) AS place
    FROM bid
) AS placed
WHERE place <= 10;
