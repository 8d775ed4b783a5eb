"""Every error that flushtracker raises on purpose.

::

    FlushtrackerError            exit 1
    ├── ConfigError              exit 2   conf/*.yaml, the command line or the environment
    │   └── ShapeError           exit 2   a shape's definition is refused
    ├── DecodeError              exit 3   bytes or JSON from outside cannot be read
    │   └── TransactionTooLargeError      a transaction is over ``max_tx_size``
    ├── GapError                exit 3   a fragment does not connect to what was seen before
    ├── StateError               exit 4   the checkpoint does not fit this job
    │   └── FencedError                another driver writes to the checkpoint
    ├── SinkError                exit 5   a Delta table cannot be written or is not ours
    ├── BrokerError              exit 6   Kafka cannot be reached, or refuses what it is asked
    │   └── BrokerUnavailableError               it has not answered for too long; trying again may help
    └── PostgresError            exit 7   PostgreSQL refuses what it is asked
        ├── PostgresUnavailableError             the server cannot be reached at the moment; trying again may help
        └── SlotError                     the slot is lost, or does not go with what was published and acknowledged

A message has the subject, the fact, both values where two disagree, and what to do; it never holds a row's values.
"""


class FlushtrackerError(Exception):
    """Root of all errors raised on purpose; its message is one line, fit for a terminal."""

    exit_code = 1
    shape_id: str | None = None
    """The shape that the error is about, where it is about one alone."""


class ConfigError(FlushtrackerError):
    """A configuration file, an argument or the environment is not usable as it stands."""

    exit_code = 2


class ShapeError(ConfigError):
    """A shape's definition cannot be kept: it is refused when defined, or when its table becomes known."""


class DecodeError(FlushtrackerError):
    """Bytes or JSON from outside do not follow their format; the message names the place."""

    exit_code = 3


class TransactionTooLargeError(DecodeError):
    """A transaction holds more changes than ``max_tx_size`` allows."""


class GapError(FlushtrackerError):
    """Going on could acknowledge a transaction that nobody has seen."""

    exit_code = 3


class StateError(FlushtrackerError):
    """The checkpoint was written by another job, or with settings that cannot change."""

    exit_code = 4


class FencedError(StateError):
    """The checkpoint has gone on without this driver: another one writes there, or it is an old copy in parts."""


class SinkError(FlushtrackerError):
    """A Delta table cannot be read or written, or was not created by this job."""

    exit_code = 5


class BrokerError(FlushtrackerError):
    """Kafka cannot be reached, or refuses what it is asked; the message names the servers or the topic."""

    exit_code = 6


class BrokerUnavailableError(BrokerError):
    """Kafka has not answered for too long: trying again may help."""


class PostgresError(FlushtrackerError):
    """PostgreSQL refuses what it is asked, or is not set up for it; the message names what is missing."""

    exit_code = 7


class PostgresUnavailableError(PostgresError):
    """The server cannot be reached, or has ended the connection: trying again may help."""


class SlotError(PostgresError):
    """The slot cannot go on where it was: nothing but a decision by its owner helps."""
