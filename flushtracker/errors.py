"""Every error that flushtracker raises on purpose.

::

    FlushtrackerError                    exit 1
    ├── ConfigError                      exit 2   conf/*.yaml, the command line or the environment
    │   ├── ShapeError                            a shape's definition is refused
    │   │   └── IdentityError                     because of its table's replica identity alone
    │   ├── ShapeEndedError                       a shape was removed or has ended
    │   ├── SnapshotMissingError                  a shape's snapshot has not been taken yet
    │   ├── CutMissingError                       shapes cannot be read as of one LSN yet
    │   └── PositionError                         a follower cannot continue, and must begin again
    ├── DecodeError                      exit 3   bytes or JSON from outside cannot be read
    │   ├── TransactionTooLargeError              a transaction exceeds ``max_tx_size``
    │   ├── UnreadableTextError                   a column's value cannot be decoded
    │   └── NewerEventError                       an event has a version that only a newer release reads
    ├── GapError                         exit 3   a fragment does not connect to those before it
    ├── StateError                       exit 4   the checkpoint does not fit this job
    │   └── FencedError                           another driver writes to the checkpoint
    ├── SinkError                        exit 5   a Delta table cannot be written or is not ours
    ├── BrokerError                      exit 6   Kafka is unreachable or refuses a request
    │   ├── BrokerUnavailableError                Kafka did not answer in time; retry later
    │   └── TopicLostError                        one topic is gone or refused, or takes no records
    ├── PostgresError                    exit 7   PostgreSQL refuses a request
    │   ├── PostgresUnavailableError              the server is unreachable at the moment; retry later
    │   │   └── ReconnectError                        the next connection must ask for other messages
    │   ├── SlotError                             the slot disagrees with the published and acked history
    │   │   └── LostSlotError                     the server has given up the slot
    │   └── SlotHeldError                exit 9   another process reads the slot
    └── StatusError                      exit 8   a program does not serve its status

A message states the subject, the fact, both values if two disagree, and what to do. It never shows a row's values.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

_REASON_LENGTH: Final = 400
START_ANEW: Final = "start with new topics, tables and checkpoints"
"""The remedy for data from before the first release."""
NEW_TOPIC: Final = "give the shape another topic, and begin it again: flushtracker resync"
"""The remedy for a topic of a Kafka sink that has lost records."""


class FlushtrackerError(Exception):
    """Root of all errors raised on purpose. The message is one :func:`printable` line, whatever names it quotes."""

    exit_code = 1
    shape_id: str | None = None
    """The shape that caused the error, if there is exactly one."""
    shape_errors: "Mapping[str, FlushtrackerError]" = MappingProxyType({})
    """The error of each shape for which the same operation failed, including this one; see :func:`first_of`."""
    also: "tuple[FlushtrackerError, ...]" = ()
    """What else is wrong with the same shape."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class ConfigError(FlushtrackerError):
    """A configuration file, an argument or the environment is not usable."""

    exit_code = 2


class ShapeError(ConfigError):
    """A shape's definition is refused, when it is defined or when its table becomes known."""


class IdentityError(ShapeError):
    """A shape needs more of old rows than the replica identity has of the tables with the OIDs ``leaves``."""

    leaves: frozenset[int] = frozenset()


class ShapeEndedError(ConfigError):
    """The shape to read was removed or has ended; the message says why."""


class SnapshotMissingError(ConfigError):
    """The shape to read must begin with a snapshot, which has not been taken yet."""


class CutMissingError(ConfigError):
    """No LSN exists yet at which all shapes can be read, or not any more; a later read will find a later one."""


class PositionError(ConfigError):
    """A position from which the log of a shape cannot be continued: read the shape again from its beginning."""


class DecodeError(FlushtrackerError):
    """Bytes or JSON from outside do not follow their format; the message names the place."""

    exit_code = 3


class TransactionTooLargeError(DecodeError):
    """A transaction has more bytes than ``max_tx_size`` allows."""


class UnreadableTextError(DecodeError):
    """A value of ``column`` has no equivalent in UTF-8."""

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message)
        self.column = column


class NewerEventError(DecodeError):
    """An event has a version that only a newer release can read: upgrade this program, the event is valid."""


class GapError(FlushtrackerError):
    """Fragments are missing or out of order: continuing could acknowledge a transaction that was never seen."""

    exit_code = 3


class StateError(FlushtrackerError):
    """The checkpoint was written by another job, or with settings that cannot change."""

    exit_code = 4


class FencedError(StateError):
    """The checkpoint has advanced without this driver: another driver writes to it, or part of it is an old copy."""


class SinkError(FlushtrackerError):
    """A Delta table cannot be read or written, or was not created by this job; or its storage does not answer."""

    exit_code = 5


class BrokerError(FlushtrackerError):
    """Kafka is unreachable or refuses a request; the message names the servers or the topic."""

    exit_code = 6


class BrokerUnavailableError(BrokerError):
    """Kafka did not answer in time; a later retry may succeed."""


class TopicLostError(BrokerError):
    """``topic`` was deleted or replaced, has lost records, or is refused, or it ``is_there`` and takes no records.

    Others may be used.
    """

    def __init__(self, message: str, topic: str = "", *, is_there: bool = False) -> None:
        super().__init__(message)
        self.topic, self.is_there = topic, is_there


class PostgresError(FlushtrackerError):
    """PostgreSQL refuses a request or is not set up for it; the message names what is missing."""

    exit_code = 7


class PostgresUnavailableError(PostgresError):
    """The server is unreachable, or closed the connection; a later retry may succeed."""


class ReconnectError(PostgresUnavailableError):
    """The next connection must receive logical messages (``with_messages``), or need not receive them any more."""

    def __init__(self, message: str, *, with_messages: bool = False) -> None:
        super().__init__(message)
        self.with_messages = with_messages


class SlotError(PostgresError):
    """The slot cannot continue from where it was; an operator must decide how to proceed."""


class LostSlotError(SlotError):
    """The server has removed WAL that the slot needs, or has invalidated the slot for another reason."""


class SlotHeldError(PostgresError):
    """Another process reads the slot, and does not release it; the message says which."""

    exit_code = 9


class StatusError(FlushtrackerError):
    """A program does not serve its status over HTTP, or the answer is not a status of this version."""

    exit_code = 8


def first_of(shape_errors: Mapping[str, FlushtrackerError]) -> FlushtrackerError:
    """The first of the errors of an operation on many shapes, with a reference to all of them."""
    for shape_id, error in shape_errors.items():
        error.shape_id = shape_id
        # Its frames would reference all the errors, and each error its frames.
        error.__traceback__ = None
    first = next(iter(shape_errors.values()))
    first.shape_errors = shape_errors
    return first


def combined(errors: Sequence[FlushtrackerError]) -> FlushtrackerError:
    """The first error of one shape, with the others as :attr:`~FlushtrackerError.also`."""
    errors[0].also = tuple(errors[1:])
    return errors[0]


def one_line(text: str) -> str:
    """A library's error message on one line, truncated.

    >>> one_line(" no\\n answer "), len(one_line("x" * 1000))
    ('no answer', 402)
    """
    line = " ".join(text.split())
    return line if len(line) <= _REASON_LENGTH else line[:_REASON_LENGTH] + " …"


def listed(names: Sequence[str], most: int = 3, others: str = "more") -> str:
    """The first ``most`` names, and how many ``others`` there are, for a message.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} {others}" if left > 0 else "")


def did_you_mean(name: str, known: Iterable[str], typed: Callable[[str], str] = str) -> str:
    """The end of a message about an unknown name: the known names that may have been meant, if any, as ``typed``.

    >>> did_you_mean("Regoin", ["id", "region", "REGION"]), did_you_mean("x", ["id"])
    ('; did you mean region or REGION?', '')
    """
    folded: dict[str, list[str]] = {}
    for each in known:
        folded.setdefault(each.casefold(), []).append(each)
    near = [each for close in difflib.get_close_matches(name.casefold(), folded, n=2) for each in folded[close]]
    return f"; did you mean {' or '.join(map(typed, near))}?" if near else ""


def printable(text: str) -> str:
    """The text on one line, with unprintable characters escaped, so that no name can forge a message.

    These are the characters that ``str.isprintable`` excludes: control and format characters, such as a line break, a
    byte order mark or a change of the writing direction, all spaces except U+0020, and unpaired surrogates.

    >>> print(printable("naïve\\n2026-01-01 ack advanced"))
    naïve\\n2026-01-01 ack advanced
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
