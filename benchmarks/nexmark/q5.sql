-- Hot items: the auctions with the most bids in the last 10 seconds, every 2 seconds.
CREATE MATERIALIZED VIEW q5 AS
WITH counted AS (
    SELECT auction, window.start AS window_start, window.end AS window_end, COUNT(*) AS bids
    FROM bid
    GROUP BY auction, window(date_time, '10 seconds', '2 seconds')
),
most AS (
    SELECT window_start, window_end, MAX(bids) AS bids
    FROM counted
    GROUP BY window_start, window_end
)
SELECT counted.auction, counted.bids, counted.window_start, counted.window_end
FROM counted
JOIN most
    ON counted.window_start = most.window_start
    AND counted.window_end = most.window_end
    AND counted.bids >= most.bids;
