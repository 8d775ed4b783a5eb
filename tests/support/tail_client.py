"""``TailClient``: a client that notes what it was shown, and refuses to have it taken back, or shown twice."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from flushtracker.serve.handle import Handle
from flushtracker.serve.messages import SEPARATOR
from tests.support.serve_client import Answering, Client, Response

Place: TypeAlias = tuple[int, int]
"""A transaction, and the number of a change in it."""

Sent: TypeAlias = dict[tuple[str, Place], bytes]
"""The bytes of each change, by the digest in the handle: shared by all clients."""


@dataclass
class TailClient(Client):
    """``shown`` is the last transaction of this source that it was shown, also before it has begun again.

    ``places`` are those of the changes that it has got after ``begun``, since it has begun.
    """

    sent: Sent = field(default_factory=dict)
    shown: int = 0
    begun: int = 0
    places: list[Place] = field(default_factory=list)
    _log: str = ""

    async def step(self, server: Answering, *, live: bool = False) -> Response:
        had, before = self.offset, self.tx if self.offset != "-1" else 0
        response = await super().step(server, live=live)
        if response.status == 409:
            self.places = []
        elif response.status == 200:
            self._note(response, before, begins=not had.endswith("_0"))
        return response

    def _note(self, response: Response, before: int, *, begins: bool) -> None:
        handle = Handle.parse(self.handle or "")
        if handle.log != self._log:
            self._log, self.shown = handle.log, 0
        places = [self._place(message) for message in response.json if "lsn" in message["headers"]]
        if begins:
            assert not places
            self.begun = self.tx
        assert all(before < tx <= self.tx for tx, _ in places), f"after {before}, up to {self.offset}: {places}"
        self.places += places
        assert self.places == sorted(set(self.places)), f"out of order, or twice: {self.places}"
        if self.offset.endswith("_0"):
            assert self.tx >= self.shown, f"it was shown {self.shown}, and is at {self.offset} now"
            self.shown = self.tx
        for raw, message in zip(response.body[1:-1].strip().split(SEPARATOR), response.json, strict=True):
            if "lsn" in message["headers"]:
                key = handle.digest, self._place(message)
                assert self.sent.setdefault(key, raw) == raw, "another server has sent other bytes"

    @staticmethod
    def _place(message: Mapping[str, dict[str, object]]) -> Place:
        headers = message["headers"]
        return int(str(headers["lsn"])), int(str(headers["op_position"]))
