"""A database as applications have them: sixteen tables, most of which an expert would not have made so."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from tests.support.new_server import new_server, server_folder
from tests.support.server_versions import binaries_of

_SCHEMA: Final = r"""
CREATE ROLE app_owner LOGIN;
CREATE ROLE capture LOGIN REPLICATION;
CREATE ROLE auditor;
GRANT CREATE ON SCHEMA public TO app_owner;
CREATE SCHEMA "Sales Dept" AUTHORIZATION app_owner;
CREATE SCHEMA crm AUTHORIZATION app_owner;
SET ROLE app_owner;
CREATE TYPE order_state AS ENUM ('open', 'paid', 'sent');
CREATE TABLE customers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL UNIQUE,
    profile jsonb NOT NULL DEFAULT '{}', created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE products (sku text PRIMARY KEY, price numeric(10, 2) NOT NULL, vat numeric(10, 2) NOT NULL, gross
    numeric(10, 2) GENERATED ALWAYS AS (price + vat) STORED, tags text[]);
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id bigint NOT NULL
    REFERENCES customers, state order_state NOT NULL DEFAULT 'open', note text);
CREATE TABLE order_lines (order_id bigint NOT NULL REFERENCES orders ON DELETE CASCADE, line int NOT NULL, sku
    text REFERENCES products, quantity int NOT NULL, PRIMARY KEY (order_id, line));
CREATE TABLE events (id bigint NOT NULL, at timestamptz NOT NULL, body jsonb, PRIMARY KEY (id, at)) PARTITION
    BY RANGE (at);
CREATE TABLE events_2025 PARTITION OF events FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
CREATE TABLE events_2026 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE audit_log (at timestamptz NOT NULL DEFAULT now(), who text, what text);
CREATE TABLE metrics (at date, name text, value double precision) PARTITION BY RANGE (at);
CREATE TABLE metrics_2026 PARTITION OF metrics FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE playlist (id int PRIMARY KEY DEFERRABLE INITIALLY IMMEDIATE, title text);
CREATE TABLE coupons (code text NOT NULL UNIQUE, percent int NOT NULL);
CREATE UNLOGGED TABLE sessions (token uuid PRIMARY KEY, seen_at timestamptz);
CREATE TABLE "ProjectMembers" ("ProjectId" int, "MemberId" int, "Role" text, PRIMARY KEY ("ProjectId",
    "MemberId"));
CREATE TABLE "Sales Dept"."Order Lines, old" (id int PRIMARY KEY, "It's ""so"" odd" text);
CREATE TABLE crm.orders (id int PRIMARY KEY, watched regclass, label text);
CREATE TABLE readings (id bigint PRIMARY KEY, sensor int NOT NULL, value real NOT NULL);
CREATE VIEW open_orders AS SELECT * FROM orders WHERE state = 'open';
RESET ROLE;
CREATE SCHEMA audit;
CREATE TABLE audit.salaries (id int PRIMARY KEY, amount numeric NOT NULL);
ALTER TABLE audit.salaries OWNER TO auditor;
GRANT USAGE ON SCHEMA crm, "Sales Dept" TO capture;
GRANT SELECT ON ALL TABLES IN SCHEMA public, crm, "Sales Dept" TO capture;
INSERT INTO readings SELECT n, n % 100, n / 7.0 FROM generate_series(1, 200000) n;
ANALYZE readings;
"""
SCHEMA: Final = tuple(_SCHEMA.strip().rstrip(";").split(";\n"))
"""Its statements, for a superuser of a new server."""

_APPLICATION: Final = r"""
INSERT INTO customers (email) VALUES ('a@b.c'), ('d@e.f');
UPDATE customers SET profile = '{"vip": true}' WHERE email = 'a@b.c';
INSERT INTO products VALUES ('s-1', 10, 2, DEFAULT, '{new}');
UPDATE products SET price = 11;
INSERT INTO orders (customer_id) SELECT id FROM customers;
UPDATE orders SET state = 'paid';
INSERT INTO order_lines SELECT id, 1, 's-1', 3 FROM orders;
UPDATE order_lines SET quantity = quantity + 1;
DELETE FROM order_lines WHERE quantity > 100;
DELETE FROM customers WHERE id NOT IN (SELECT customer_id FROM orders);
INSERT INTO events VALUES (1, '2025-05-01', '{}'), (2, '2026-05-01', NULL);
UPDATE events SET body = '[1]';
DELETE FROM events;
INSERT INTO audit_log VALUES (now(), 'me', 'same'), (now(), 'me', 'same');
INSERT INTO audit_log (who) VALUES (NULL);
UPDATE audit_log SET what = 'other' WHERE who = 'me';
DELETE FROM audit_log WHERE who IS NULL;
INSERT INTO metrics VALUES ('2026-02-02', 'cpu', 1), ('2026-02-02', 'cpu', 1);
UPDATE metrics SET value = 2;
DELETE FROM metrics;
INSERT INTO playlist VALUES (1, 'a'), (2, 'b');
UPDATE playlist SET id = 3 - id;
DELETE FROM playlist;
INSERT INTO coupons VALUES ('x', 5);
UPDATE coupons SET code = 'y';
DELETE FROM coupons;
INSERT INTO sessions VALUES (gen_random_uuid(), now());
UPDATE sessions SET seen_at = NULL;
DELETE FROM sessions;
INSERT INTO "ProjectMembers" VALUES (1, 1, 'x');
UPDATE "ProjectMembers" SET "Role" = 'y';
DELETE FROM "ProjectMembers";
INSERT INTO "Sales Dept"."Order Lines, old" VALUES (1, 'x');
UPDATE "Sales Dept"."Order Lines, old" SET id = 2;
DELETE FROM "Sales Dept"."Order Lines, old";
INSERT INTO crm.orders VALUES (1, 'pg_class', 'x');
UPDATE crm.orders SET label = 'y';
DELETE FROM crm.orders;
INSERT INTO readings VALUES (0, 1, 2);
UPDATE readings SET value = 3 WHERE id < 10;
DELETE FROM readings WHERE id < 5;
INSERT INTO audit.salaries VALUES (1, 2);
UPDATE audit.salaries SET amount = 3;
DELETE FROM audit.salaries;
DELETE FROM order_lines;
DELETE FROM orders;
DELETE FROM customers;
DELETE FROM products;
"""
APPLICATION: Final = tuple(_APPLICATION.strip().rstrip(";").split(";\n"))
"""What the applications of the database run, and may run again."""


@contextmanager
def shop_server(version: int | None) -> Iterator[LocalPostgres]:
    """A server as it is installed, without logical decoding or room for a slot, with this database.

    ``version``: of PostgreSQL; that of the other tests by default.
    """
    with server_folder() as folder:
        server = new_server(folder / "server", None if version is None else binaries_of(version))
        for name in ("wal_level", "max_replication_slots"):
            del server.settings[name]
        server.settings["autovacuum"] = "off"
        with server:
            server.execute("ALTER SYSTEM SET max_replication_slots = 0")
            server.restart()
            run_all(server, SCHEMA)
            run_all(server, APPLICATION)
            yield server


def run_all(server: LocalPostgres, statements: Sequence[str]) -> None:
    """Run statements in one session of a superuser; each must work."""
    with closing(server.connect()) as connection:
        for statement in statements:
            rows(connection, statement)


def printed_statements(text: str) -> list[str]:
    """What is to be pasted into psql, of what ``init`` prints: the lines that begin deeper than those of the tables."""
    return re.findall(r"^  +((?:ALTER|CREATE|GRANT|SELECT|DO) .*);$", text, re.MULTILINE)
