-- Rows arrive from the sources of stepwell.yml, or with stepwell push. The last row of a key wins.
CREATE TABLE orders (
  id BIGINT NOT NULL PRIMARY KEY,
  customer STRING NOT NULL,
  amount DECIMAL(12,2) NOT NULL,
  at TIMESTAMP
);

-- A plain view stores nothing.
CREATE VIEW big_orders AS
  SELECT * FROM orders WHERE amount >= 100;

-- A materialized view is stored, and only what changed is computed.
CREATE MATERIALIZED VIEW revenue AS
  SELECT customer, SUM(amount) AS total, COUNT(*) AS n
  FROM orders
  GROUP BY customer;

CREATE MATERIALIZED VIEW big_spenders AS
  SELECT customer, COUNT(*) AS big_orders
  FROM big_orders
  GROUP BY customer;
