-- User sessions: how many bids each bidder made without a pause of 10 seconds.
CREATE MATERIALIZED VIEW q11 AS
SELECT
    bidder,
    COUNT(*) AS bids,
    session_window.start AS start_time,
    session_window.end AS end_time
FROM bid
GROUP BY bidder, session_window(date_time, '10 seconds');
