CREATE SCHEMA bank;
CREATE TABLE bank.holding (
  holding_id int,
  user_id int,
  holding_stock varchar(8),
  holding_quantity int,
  datetime_created timestamp,
  datatime_updated timestamp
);
-- Old values travel with updates and deletes only with this.
ALTER TABLE bank.holding REPLICA IDENTITY FULL;
INSERT INTO bank.holding VALUES (1000, 1, 'VFIAX', 10, now(), now());

-- C
INSERT INTO bank.holding VALUES (1001, 2, 'SP500', 1, now(), now());
INSERT INTO bank.holding VALUES (1002, 3, 'SP500', 1, now(), now());

-- U
UPDATE bank.holding SET holding_quantity = 100 WHERE holding_id = 1000;

-- D
DELETE FROM bank.holding WHERE user_id = 3;
DELETE FROM bank.holding WHERE user_id = 2;

-- C
INSERT INTO bank.holding VALUES (1003, 3, 'VTSAX', 100, now(), now());

-- U
UPDATE bank.holding SET holding_quantity = 10 WHERE holding_id = 1003;
