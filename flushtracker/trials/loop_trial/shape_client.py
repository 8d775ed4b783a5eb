"""``ShapeClient``: a copy of a shape, kept by the rules of Electric's own client, version 1.5.28, and without I/O.

It is stricter than that client. It refuses an answer that the client would take for a cache's outdated one, or after
which it would request the same address again. It also refuses a change that its rows contradict.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flushtracker.errors import DecodeError

_MUST_REFETCH: Final = [{"headers": {"control": "must-refetch"}}]


@dataclass
class ShapeClient:
    """Ask for :meth:`query` and :meth:`take` the answer, again and again.

    ``params`` define the shape. ``rows`` has what the client shows, by key; they are whole once ``is_up_to_date``.
    ``seen_lsn``: up to there the last up-to-date message says that it has everything. ``conflicts`` counts how often it
    was told to begin again.
    """

    params: dict[str, str]
    offset: str = "-1"
    handle: str | None = None
    expired: str | None = None
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_up_to_date: bool = False
    cursor: str = ""
    seen_lsn: int = 0
    conflicts: int = 0

    @property
    def tx(self) -> int:
        """The transaction up to which it has everything."""
        return int(self.offset.partition("_")[0])

    def query(self, *, live: bool) -> dict[str, str]:
        """The parameters of the next request; with ``live`` one that waits for changes, if it is up to date."""
        found = {**self.params, "offset": self.offset, "log": "full"}
        if self.handle is not None:
            found["handle"] = self.handle
        if self.expired is not None:
            found["expired_handle"] = self.expired
        if live and self.is_up_to_date:
            found |= {"live": "true", "cursor": self.cursor}
        return found

    def take(self, status: int, headers: Mapping[str, str], body: bytes, *, live: bool) -> None:
        """Process the answer to :meth:`query`; statuses other than 200 and 409 change nothing.

        ``headers`` have lower-case names.

        Raises:
            DecodeError: the answer breaks the protocol.
        """
        try:
            if status == 409:
                self._begin_again(headers["electric-handle"], json.loads(body))
            elif status == 200:
                self._take(headers, json.loads(body), live=live and self.is_up_to_date)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DecodeError(f"{self._name()}: {type(error).__name__}: {error}") from error

    def _begin_again(self, handle: str, messages: object) -> None:
        self._require(handle not in {self.handle, self.expired}, "a 409 has the handle that the client has")
        self._require(messages == _MUST_REFETCH, "a 409 has other messages than must-refetch")
        self.expired = self.handle or self.expired
        self.handle, self.offset, self.rows, self.is_up_to_date, self.cursor = handle, "-1", {}, False, ""
        self.conflicts += 1

    def _take(self, headers: Mapping[str, str], messages: list[dict[str, Any]], *, live: bool) -> None:
        self._require(headers["electric-handle"] != self.expired, "the client would take this for an outdated answer")
        self._require("electric-schema" in headers, "an answer lacks electric-schema")
        self._require(("electric-cursor" in headers) == live, "only an answer to a live request has a cursor")
        if live:
            moved = headers["electric-offset"] != self.offset or headers["electric-cursor"] != self.cursor
            self._require(moved, "the next address would be the last one's")
            self.cursor = headers["electric-cursor"]
        self._require(isinstance(messages, list), "the messages are no list")
        self.handle, self.offset = headers["electric-handle"], headers["electric-offset"]
        self.is_up_to_date = self.is_up_to_date if live and not messages else False
        for message in messages:
            self._apply(message)
        self._require(
            self.is_up_to_date == ("electric-up-to-date" in headers), "header and messages differ in up-to-date"
        )

    def _apply(self, message: dict[str, Any]) -> None:
        headers, key = message["headers"], message.get("key")
        if "control" in headers:
            self._require(headers["control"] == "up-to-date", f"there is a control message {headers['control']}")
            self.is_up_to_date, self.seen_lsn = True, int(headers.get("global_last_seen_lsn", 0))
            return
        operation, had = headers["operation"], self.rows.get(message["key"])
        self._require(
            (had is None) == (operation == "insert"),
            f"{operation} of {key}, whose row the client " + ("lacks" if had is None else "has"),
        )
        if operation == "delete":
            del self.rows[message["key"]]
        else:
            self._require(operation in {"insert", "update"}, f"there is an operation {operation}")
            self.rows[message["key"]] = {**(had or {}), **message["value"]}

    def _require(self, condition: object, fact: str) -> None:
        if not condition:
            raise DecodeError(f"{self._name()}: {fact}")

    def _name(self) -> str:
        return f"client of {self.params}, at {self.offset} of {self.handle}"
