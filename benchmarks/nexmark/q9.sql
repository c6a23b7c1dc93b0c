-- Winning bids: the highest bid of each auction that came while it was open, the earliest of these.
CREATE MATERIALIZED VIEW q9 AS
SELECT
    id,
    item_name,
    description,
    initial_bid,
    reserve,
    date_time,
    expires,
    seller,
    category,
    extra,
    bidder,
    price,
    bid_date_time,
    bid_extra
FROM (
    SELECT
        a.*,
        b.bidder,
        b.price,
        b.date_time AS bid_date_time,
        b.extra AS bid_extra,
        ROW_NUMBER() OVER (
            PARTITION BY a.id
            ORDER BY b.price DESC, b.date_time, b.bidder, b.extra
        ) AS place
    FROM auction a
    JOIN bid b ON a.id = b.auction
    WHERE b.date_time BETWEEN a.date_time AND a.expires
) AS placed
WHERE place = 1;
