-- An auction house, after the Nexmark benchmark: people open auctions and bid in them.
--
-- The queries are q0 to q22 as views on tables that grow, without two of them:
--   q10 writes the bids to files, by day and minute: that is a sink, not a query;
--   q12 groups bids by the time at which they are processed: no two runs would give one answer.
-- Where a query sorts and keeps some rows (q6, q9, q18, q19), columns are added to its order until
-- rows that still tie are the same in every column that is kept, so that there is one answer.

CREATE TABLE person (
    id BIGINT NOT NULL PRIMARY KEY,
    name STRING NOT NULL,
    email_address STRING NOT NULL,
    credit_card STRING NOT NULL,
    city STRING NOT NULL,
    state STRING NOT NULL,
    date_time TIMESTAMP NOT NULL,
    extra STRING NOT NULL
);

CREATE TABLE auction (
    id BIGINT NOT NULL PRIMARY KEY,
    item_name STRING NOT NULL,
    description STRING NOT NULL,
    initial_bid BIGINT NOT NULL,
    reserve BIGINT NOT NULL,
    date_time TIMESTAMP NOT NULL,
    expires TIMESTAMP NOT NULL,
    seller BIGINT NOT NULL,
    category BIGINT NOT NULL,
    extra STRING NOT NULL
);

-- No key: a bid that is sent twice is there twice.
CREATE TABLE bid (
    auction BIGINT NOT NULL,
    bidder BIGINT NOT NULL,
    price BIGINT NOT NULL,
    channel STRING NOT NULL,
    url STRING NOT NULL,
    date_time TIMESTAMP NOT NULL,
    extra STRING NOT NULL
);

-- What q13 looks up.
CREATE TABLE side_input (
    key BIGINT NOT NULL PRIMARY KEY,
    value STRING NOT NULL
);
