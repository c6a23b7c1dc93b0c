-- Bounded side input join: every bid, with what a small table says of its auction.
-- The small table has 1,000 rows here, so that a test of a few thousand bids reaches most of them.
CREATE MATERIALIZED VIEW q13 AS
SELECT b.auction, b.bidder, b.price, b.date_time, s.value
FROM bid b
JOIN side_input s ON MOD(b.auction, 1000) = s.key;
