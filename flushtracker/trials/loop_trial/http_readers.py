"""``HttpReaders``: clients that follow all shapes of a trial over HTTP, each request from another server.

They wait for changes at a server for a short time only. So while a server without a tail has none, they ask one that
has, and are ahead of the log most of the time.
"""

import random
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from threading import Event, Lock, Thread
from typing import Final
from urllib.parse import urlencode

from flushtracker.errors import DecodeError
from flushtracker.local.free_ports import HOST
from flushtracker.trials.loop_trial.bank_workload import ACCOUNTS, ACCOUNTS_SHAPE, LEDGER_SHAPES
from flushtracker.trials.loop_trial.history import History
from flushtracker.trials.loop_trial.shape_client import ShapeClient
from flushtracker.wal.changes import Row

_TIMEOUT_S: Final = 30.0
_LONGEST_WAIT_S: Final = 2.0
_RETRY_S: Final = 0.2
_REST: Final = 10
"""How much longer a client goes on without a check than the last one took, which is longer with each transaction."""


class HttpReaders:
    """A context manager; ``ports`` are those of the servers. ``lock`` guards the history."""

    def __init__(self, ports: Sequence[int], shape_ids: Iterable[str], history: History, lock: Lock, seed: int) -> None:
        self._stop = Event()
        self._readers = {each: _Reader(each, ports, history, lock, f"{seed}/{each}") for each in shape_ids}
        self._threads = [Thread(target=each.follow, args=(self._stop,)) for each in self._readers.values()]

    def __enter__(self) -> "HttpReaders":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def rows(self, shape_id: str) -> list[Row] | None:
        """What a client has if it is up to date, else ``None``."""
        return self._readers[shape_id].rows()

    def raise_failure(self) -> None:
        """Raise the error that has ended a client."""
        for reader in self._readers.values():
            if reader.failure is not None:
                raise reader.failure


class _Reader:
    def __init__(self, shape_id: str, ports: Sequence[int], history: History, lock: Lock, seed: str) -> None:
        self.failure: BaseException | None = None
        self._shape_id, self._ports = shape_id, ports
        self._rng = random.Random(seed)  # noqa: S311  reproducible
        self._history, self._history_lock = history, lock
        self._client, self._client_lock = ShapeClient({"shape": shape_id}), Lock()
        self._next_check_s = 0.0

    def rows(self) -> list[Row] | None:
        with self._client_lock:
            return [*self._client.rows.values()] if self._client.is_up_to_date else None

    def follow(self, stop: Event) -> None:
        try:
            while not stop.is_set():
                if self._ask():
                    self._check()
                else:
                    stop.wait(_RETRY_S)
        except DecodeError as error:
            self._violate(str(error))
        except BaseException as error:  # noqa: BLE001  raised by the trial
            self.failure = error

    def _ask(self) -> bool:
        """Ask a server, and take its answer; returns false if the client is to ask again later."""
        port, is_live = self._rng.choice(self._ports), self._client.is_up_to_date
        timeout_s = self._rng.uniform(0, _LONGEST_WAIT_S) if is_live else _TIMEOUT_S
        try:
            with closing(HTTPConnection(HOST, port, timeout=timeout_s)) as connection:
                connection.request("GET", f"/v1/shape?{urlencode(self._client.query(live=True))}")
                response = connection.getresponse()
                headers = {name.lower(): value for name, value in response.getheaders()}
                body = response.read()
        except (OSError, HTTPException) as error:
            # A server that was killed, or has nothing to say.
            return isinstance(error, TimeoutError)
        with self._client_lock:
            self._client.take(response.status, headers, body, live=True)
        # A server may know of the shape only later, or cannot say anything yet.
        if response.status not in {200, 409} | ({503} if self._client.handle else {404, 503}):
            raise DecodeError(f"{self._shape_id}: {response.status} {body[:200]!r}")
        return response.status in {200, 409}

    def _check(self) -> None:
        """Show the history what the client shows."""
        client, began_s = self._client, time.monotonic()
        if not client.is_up_to_date or began_s < self._next_check_s:
            return
        rows = client.rows.values()
        if self._shape_id in LEDGER_SHAPES:
            found = [(int(row["txn"]), int(row["part"])) for row in rows]
            with self._history_lock:
                self._history.observe_over_http(self._shape_id, max(client.tx, client.seen_lsn), found)
        elif self._shape_id == ACCOUNTS_SHAPE:
            balances = [int(row["balance"]) for row in rows]
            with self._history_lock:
                self._history.observe_accounts(balances, ACCOUNTS, over_http=True)
        self._next_check_s = time.monotonic() + _REST * (time.monotonic() - began_s)

    def _violate(self, fact: str) -> None:
        with self._history_lock:
            self._history.violate("http", fact)
