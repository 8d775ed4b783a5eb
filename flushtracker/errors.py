"""Every error that flushtracker raises on purpose.

::

    FlushtrackerError            exit 1
    ├── ConfigError              exit 2   conf/*.yaml, the command line or the environment
    │   └── ShapeError           exit 2   a shape's definition is refused
    ├── DecodeError              exit 3   bytes or JSON from outside cannot be read
    │   └── TransactionTooLargeError      a transaction is over ``max_tx_size``
    ├── HoleError                exit 3   a fragment does not connect to what was seen before
    ├── StateError               exit 4   the checkpoint does not fit this job
    ├── SinkError                exit 5   a Delta table cannot be written or is not ours
    └── BrokerError              exit 6   Kafka cannot be reached, or refuses what it is asked

A message has the subject, the fact, both values where two disagree, and what to do; it never holds a row's values.
"""


class FlushtrackerError(Exception):
    """Root of all errors raised on purpose; its message is one line, fit for a terminal."""

    exit_code = 1


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


class HoleError(FlushtrackerError):
    """Going on could acknowledge a transaction that nobody has seen."""

    exit_code = 3


class StateError(FlushtrackerError):
    """The checkpoint was written by another job, or with settings that cannot change."""

    exit_code = 4


class SinkError(FlushtrackerError):
    """A Delta table cannot be read or written, or was not created by this job."""

    exit_code = 5


class BrokerError(FlushtrackerError):
    """Kafka cannot be reached, or refuses what it is asked; the message names the servers or the topic."""

    exit_code = 6
