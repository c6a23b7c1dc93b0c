-- Selection: the bids in some auctions.
CREATE MATERIALIZED VIEW q2 AS
SELECT auction, price
FROM bid
WHERE MOD(auction, 123) = 0;
