"""A client that merges subsets of a shape with its stream, as Electric's does: ports of its source, version 1.5.28.

``SnapshotTracker`` is the client's own, by which it skips what a subset contains; before 1.5.26 it compared raw xids,
and no LSN of a change. ``SubsetClient`` has ``ShapeStream`` (``changes_only``), and on it ``Shape``, or TanStack DB's
rule for complete rows. Requests for subsets may be answered in any order; the stream stands still until all are.
"""

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from tests.support.serve_client import Answering, Response

_NOT_SEEN = -1


@dataclass
class _Snapshot:
    xmin: int
    xmax: int
    xip: list[int]
    keys: set[str]
    lsn: int


@dataclass
class SnapshotTracker:
    """``is_old``: as before 1.5.26."""

    is_old: bool = False
    active: dict[int, _Snapshot] = field(default_factory=dict)

    def add(self, metadata: dict[str, Any], keys: set[str]) -> None:
        xip = [int(each) for each in metadata["xip_list"]]
        self.active[metadata["snapshot_mark"]] = _Snapshot(
            int(metadata["xmin"]), int(metadata["xmax"]), xip, keys, int(metadata["database_lsn"])
        )

    def rejects(self, message: dict[str, Any]) -> bool:
        """Whether a change is skipped because an active subset has it."""
        headers = message["headers"]
        if not self.is_old:
            self.seen(int(headers["lsn"]))
        xids = headers["txids"]
        for mark, each in list(self.active.items()):
            if self._latest(xids, each.xmax) >= each.xmax:
                del self.active[mark]
        return any(
            message["key"] in each.keys and self._is_visible(self._latest(xids, each.xmax), each)
            for each in self.active.values()
        )

    def seen(self, lsn: int) -> None:
        self.active = {mark: each for mark, each in self.active.items() if each.lsn > lsn}

    def _latest(self, xids: list[int], reference: int) -> int:
        if self.is_old:
            return max(xids)
        nearest = [(xid - reference + 2**31) % 2**32 - 2**31 + reference for xid in xids]
        return max([_NOT_SEEN, *nearest])

    @staticmethod
    def _is_visible(xid: int, each: _Snapshot) -> bool:
        return xid < each.xmin or (xid < each.xmax and xid not in each.xip)


@dataclass
class Asked:
    """A request for a subset, and its answer, which has yet to be processed."""

    subset: dict[str, str]
    response: Response
    asked_at: datetime
    tries: int = 0


@dataclass
class SubsetClient:
    """``takes_complete``: updates have whole rows, and one of a row that it lacks is taken as such.

    ``rows`` has what it shows. ``arriving`` are answers to be processed, ``loaded`` the subsets that it has, each with
    the keys and the offset at which it came. ``is_strict``: nothing may come twice.
    """

    params: dict[str, str]
    takes_complete: bool = False
    tracker: SnapshotTracker = field(default_factory=SnapshotTracker)
    offset: str = "now"
    handle: str | None = None
    expired: str | None = None
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_up_to_date: bool = False
    is_strict: bool = True
    arriving: list[Asked] = field(default_factory=list)
    loaded: list[tuple[dict[str, str], set[str], int]] = field(default_factory=list)
    wanted: list[dict[str, str]] = field(default_factory=list)
    """Subsets to be asked for again after the client has begun again."""
    conflicts: int = 0
    newest: int = 0
    """Its rows are of no later transaction than this, or than its offset."""
    is_cold: bool = False
    """Whether it asks for subsets before its stream begins."""

    @property
    def tx(self) -> int:
        return int(self.offset.partition("_")[0])

    @property
    def is_new(self) -> bool:
        """Whether it has no offset of an answer."""
        return self.offset in {"now", "-1"}

    def query(self) -> dict[str, str]:
        found = {**self.params, "offset": self.offset, "log": "changes_only"}
        found |= {} if self.handle is None else {"handle": self.handle}
        return found | ({} if self.expired is None else {"expired_handle": self.expired})

    async def ask(self, server: Answering, subset: dict[str, str], tries: int = 0) -> Response:
        """Ask for a subset; its answer arrives."""
        if self.is_new:
            self.is_strict = False
        asked_at = datetime.now(timezone.utc)
        response = await server.get({**self.query(), **{f"subset__{name}": text for name, text in subset.items()}})
        if response.status != 503:
            self.arriving.append(Asked(subset, response, asked_at, tries))
        return response

    async def take(self, asked: Asked, server: Answering) -> None:
        """Process an answer that has arrived."""
        self.arriving.remove(asked)
        headers = asked.response.headers
        if asked.response.status == 409:
            # Electric's client keeps its offset, and its rows.
            self.handle = headers["electric-handle"]
            if asked.tries < 5:
                await self.ask(server, asked.subset, asked.tries + 1)
            return
        assert asked.response.status == 200, asked.response.body
        found = asked.response.json
        keys = {message["key"] for message in found["data"]}
        self.tracker.add(found["metadata"], keys)
        if headers["cache-control"] == "no-store":
            self.is_strict = False
        for message in found["data"]:
            assert message["headers"]["snapshot_mark"] == found["metadata"]["snapshot_mark"]
            self._write("insert", message["key"], message["value"])
        self.offset, self.handle = headers["electric-offset"], headers["electric-handle"]
        self.loaded.append((asked.subset, keys, self.tx))

    async def step(self, server: Answering, *, live: bool = False) -> Response:
        """The stream's next request; only while nothing arrives."""
        assert not self.arriving
        waits = {"live": "true", "cursor": ""} if live and self.is_up_to_date else {}
        response = await server.get({**self.query(), **waits})
        if response.status == 409:
            self.expired, self.handle = self.handle or self.expired, response.headers["electric-handle"]
            self.offset, self.is_up_to_date, self.rows, self.is_strict = "-1", False, {}, True
            self.wanted += [subset for subset, _, _ in self.loaded]
            self.loaded, self.tracker.active = [], {}
            self.conflicts += 1
        elif response.status == 200:
            self.handle, self.offset = response.headers["electric-handle"], response.headers["electric-offset"]
            self.is_up_to_date = self.is_up_to_date and not response.json
            for message in response.json:
                self._receive(message)
        return response

    def _receive(self, message: dict[str, Any]) -> None:
        headers = message["headers"]
        if "control" in headers:
            self.tracker.seen(int(headers.get("global_last_seen_lsn", 0)))
            self.is_up_to_date = True
        elif not self.tracker.rejects(message):
            key, operation = message["key"], headers["operation"]
            if self.is_strict and operation == "insert":
                assert key not in self.rows, "a row comes twice"
            if operation == "update" and key not in self.rows and not self.takes_complete:
                return
            self._write(operation, key, message["value"])

    def _write(self, operation: str, key: str, value: dict[str, Any]) -> None:
        if operation == "delete":
            self.rows.pop(key, None)
        elif operation == "insert":
            self.rows[key] = dict(value)
        else:
            self.rows[key] = {**self.rows.get(key, {}), **value}
