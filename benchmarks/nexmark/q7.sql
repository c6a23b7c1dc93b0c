-- Highest bid: the bids with the highest price of each 10 seconds.
CREATE MATERIALIZED VIEW q7 AS
SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
FROM bid b
JOIN (
    SELECT MAX(price) AS price, window.start AS window_start, window.end AS window_end
    FROM bid
    GROUP BY window(date_time, '10 seconds')
) AS highest
    ON b.price = highest.price
    AND b.date_time >= highest.window_start
    AND b.date_time < highest.window_end;
