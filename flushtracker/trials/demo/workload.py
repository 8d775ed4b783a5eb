"""The demo's tables and its workload: a steady stream of small transactions, with a large one from time to time.

``python -m flushtracker.trials.demo.workload --config FILE`` runs it on the server in capture's configuration until
SIGTERM or Ctrl-C.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.postgres.connection import connect, rows
from flushtracker.process.log_format import LOG_FORMATS
from flushtracker.process.program import StopRequest, run_program

TABLES: Final = (
    """
    CREATE TABLE customers (id int PRIMARY KEY, visits int NOT NULL, level text NOT NULL);
    CREATE TABLE orders (id serial PRIMARY KEY, customer int NOT NULL, region text, status text NOT NULL, note text);
    CREATE TABLE audit (id bigserial PRIMARY KEY, said text NOT NULL);
    """,
    # Shapes filter by columns outside the key, so updates must include the old row.
    "ALTER TABLE customers REPLICA IDENTITY FULL",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    # These rows reach the shapes in their snapshots.
    "INSERT INTO customers SELECT i, 0, CASE WHEN i <= 5 THEN 'gold' ELSE 'basic' END FROM generate_series(1, 100) i",
    """
    INSERT INTO orders (customer, region, status, note)
    SELECT i % 100 + 1, (ARRAY['eu', 'us', 'asia'])[i % 3 + 1], (ARRAY['open', 'sent'])[i % 2 + 1], repeat('x', i % 100)
    FROM generate_series(1, 20000) i
    """,
)
_PER_SECOND: Final = 25
_LARGE_EVERY: Final = 100
_SNAPSHOT_EVERY: Final = 50
_LEVEL_EVERY: Final = 30

_NEW_ORDERS: Final = """
INSERT INTO public.orders (customer, region, status, note)
SELECT ceil(100 * random()), (ARRAY['eu', 'us', 'asia'])[ceil(3 * random())], 'open', repeat('x', (900 * random())::int)
"""
_LARGE: Final = f"{_NEW_ORDERS} FROM generate_series(1, 400)"
_STATEMENTS: Final = (
    _NEW_ORDERS,
    _NEW_ORDERS,
    """
    UPDATE public.orders SET status = (ARRAY['open', 'paid', 'sent'])[ceil(3 * random())]
    WHERE id = (SELECT max(id) - floor(200 * random()) FROM public.orders)
    """,
    "DELETE FROM public.orders WHERE id = (SELECT max(id) - floor(200 * random()) FROM public.orders)",
    "UPDATE public.customers SET visits = visits + 1 WHERE id = (SELECT ceil(100 * random()))",
    "INSERT INTO public.audit (said) VALUES (repeat('.', (200 * random())::int))",
)
# One customer stops being gold and another becomes it: their orders leave and enter the shape of gold customers'
# orders.
_LEVELS: Final = """
UPDATE public.customers SET level = CASE level WHEN 'gold' THEN 'basic' ELSE 'gold' END
WHERE id IN (
  (SELECT id FROM public.customers WHERE level = 'gold' ORDER BY random() LIMIT 1)
  UNION ALL (SELECT id FROM public.customers WHERE level = 'basic' ORDER BY random() LIMIT 1)
)
"""
# The slot releases WAL only up to a logged snapshot of running transactions, and the server logs one only every 15
# seconds.
_SNAPSHOT: Final = "SELECT pg_log_standby_snapshot()"


def random_transactions(rng: random.Random) -> Iterator[str]:
    """Yield transactions forever, each as the text of its statements."""
    for number in count(1):
        if number % _LARGE_EVERY == 0:
            yield _LARGE
        elif number % _LEVEL_EVERY == 0:
            yield _LEVELS
        else:
            yield ";".join(rng.choices(_STATEMENTS, k=rng.randrange(1, 4)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="capture's configuration")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default="text")
    arguments = parser.parse_args()
    return run_program("workload", partial(_run, arguments.config), verbose=False, log_format=arguments.log_format)


def _run(config_file: Path) -> int:
    stop = StopRequest(interrupts=False)
    config = load_capture_config(config_file).postgres
    options = {**config.connection, "application_name": "flushtracker_workload"}
    started = time.monotonic()
    with closing(connect(options)) as connection:
        texts = random_transactions(random.Random(1))  # noqa: S311  the same work each time
        for number, text in enumerate(texts):
            if stop.is_made:
                break
            # The whole text is one transaction.
            rows(connection, text)
            if number % _SNAPSHOT_EVERY == 0:
                rows(connection, _SNAPSHOT)
            time.sleep(max(0.0, started + number / _PER_SECOND - time.monotonic()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
