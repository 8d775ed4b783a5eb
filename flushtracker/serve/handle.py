"""``Handle`` and ``ClientOffset``: what a client stores for a shape, and sends with each request.

A handle identifies the log that the client follows, and the snapshot that it started from. So any server can continue
for it, and no server has to remember clients. The handle of a 409 also has the last transaction that the client was
shown, so that no server starts it over with older rows.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from flushtracker.errors import DecodeError
from flushtracker.serve.refusals import BadRequestError

_HANDLE: Final = re.compile(
    r"([0-9a-f]{8}|)([0-9a-f]{16})-(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,8})(?:-([1-9][0-9]{0,18}))?", re.ASCII
)
_PLACE: Final = re.compile(r"(0|[1-9][0-9]{0,18})_(0|[1-9][0-9]{0,18}|inf)", re.ASCII)
_MOST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Handle:
    """``digest`` identifies the log, the shape and its columns, ``attempt`` the snapshot that the client started from.

    If a client must start over although nothing else has changed, ``generation`` differs. Otherwise it would take the
    answer for one from an outdated cache, because it was told to drop that handle. ``log`` identifies the log and the
    source alone, and is empty in handles of an older form. ``shown`` is the last transaction that the client was shown,
    or 0.

    >>> str(Handle("0123456789abcdef", 3))
    '0123456789abcdef-3-0'
    >>> Handle.parse("89abcdef0123456789abcdef-3-1-24")
    Handle(digest='0123456789abcdef', attempt=3, generation=1, log='89abcdef', shown=24)
    """

    digest: str
    attempt: int
    generation: int = 0
    log: str = ""
    shown: int = 0

    @classmethod
    def parse(cls, text: str) -> "Handle":
        found = _HANDLE.fullmatch(text)
        if found is None or max(int(found[3]), int(found[5] or 0)) > _MOST:
            raise DecodeError("handle is none of this server's")
        return cls(found[2], int(found[3]), int(found[4]), found[1], int(found[5] or 0))

    def __str__(self) -> str:
        shown = f"-{self.shown}" if self.shown else ""
        return f"{self.log}{self.digest}-{self.attempt}-{self.generation}{shown}"

    @property
    def begun(self) -> tuple[str, int]:
        """The log and the snapshot: handles that agree in these are continued in the same way."""
        return self.digest, self.attempt

    def is_generation_of(self, other: "Handle") -> bool:
        """Whether the two differ at most in the generation, and in what the client was shown."""
        return self.begun == other.begun


def handle_or_none(text: str | None) -> Handle | None:
    """A handle sent by a client; ``None`` for none, and for one that no server of this kind has created."""
    try:
        return None if text is None else Handle.parse(text)
    except DecodeError:
        return None


def next_handle(current: Handle, *used: Handle | None) -> Handle:
    """The current handle, or its next generation if the client has been told to drop one of them.

    >>> next_handle(Handle("0123456789abcdef", 3), Handle("0123456789abcdef", 3, 1), None).generation
    2
    >>> next_handle(Handle("0123456789abcdef", 4), Handle("0123456789abcdef", 3, 1)).generation
    0
    """
    generations = [each.generation for each in used if each is not None and each.is_generation_of(current)]
    return replace(current, generation=max(generations) + 1) if generations else current


@dataclass(frozen=True, slots=True)
class ClientOffset:
    """An offset: everything up to the end of the transaction at ``tx`` if ``rows`` is 0.

    Otherwise the first ``rows`` rows that the shape has there, in the order of their inserts.

    >>> str(ClientOffset.parse("23997288_0"))
    '23997288_0'
    """

    tx: int
    rows: int = 0

    @classmethod
    def parse(cls, text: str) -> "ClientOffset":
        """Read an offset of this server; raises ``BadRequestError``.

        Electric's offsets are accepted, too, even ``0_inf``: its clients must start over here.
        """
        found = _PLACE.fullmatch(text)
        numbers = [] if found is None else [_MOST if each == "inf" else int(each) for each in found.groups()]
        if not numbers or max(numbers) > _MOST:
            raise BadRequestError("offset is not -1, now, or one that an answer had as electric-offset")
        return cls(*numbers)

    def __str__(self) -> str:
        return f"{self.tx}_{self.rows}"
