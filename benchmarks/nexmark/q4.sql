-- Average price for a category: of the highest bids that came while their auctions were open.
CREATE MATERIALIZED VIEW q4 AS
SELECT category, AVG(final) AS average
FROM (
    SELECT MAX(b.price) AS final, a.category
    FROM auction a, bid b
    WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
    GROUP BY a.id, a.category
) AS closed
GROUP BY category;
