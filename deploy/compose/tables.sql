-- The tables of deploy/compose/shapes.d, with rows. The image of PostgreSQL runs this when it creates the database.
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE orders (id serial PRIMARY KEY, customer int NOT NULL, region text, status text NOT NULL);
-- Shapes filter by columns outside the key, so updates must include the old row.
ALTER TABLE orders REPLICA IDENTITY FULL;

INSERT INTO customers SELECT i, 'customer ' || i FROM generate_series(1, 100) i;
INSERT INTO orders (customer, region, status)
SELECT i % 100 + 1, (ARRAY['eu', 'us', 'asia'])[i % 3 + 1], (ARRAY['open', 'sent'])[i % 2 + 1]
FROM generate_series(1, 1000) i;
