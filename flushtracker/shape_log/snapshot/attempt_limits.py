"""How long an attempt may take, and how it ends early."""

from typing import Final

from flushtracker.config.units import seconds_text
from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.shape_log.snapshot.read_plan import ReadPlan

_TRIED_SHARE: Final = 0.1
"""How much of its time an attempt gets before it is judged by its rate."""


class SnapshotStoppedError(FlushtrackerError):
    """The job was told to stop during an attempt, of which nothing counts."""

    exit_code = 0

    def __init__(self) -> None:
        super().__init__("stopped before the snapshot was complete; nothing of it was appended")


class TooLargeError(ConfigError):
    """The attempt takes, or would take, longer than it may."""


def require_fitting(plan: ReadPlan, done: int, seconds: float, most_s: float) -> None:
    """Raise ``TooLargeError`` if the attempt, at its rate, would take too long, and can be divided.

    The ``done`` first ranges have taken so many ``seconds``.
    """
    if len(plan.shapes) > 1 and seconds > _TRIED_SHARE * most_s and seconds * len(plan.ranges) > most_s * done:
        raise too_large(plan, done, seconds, most_s)


def too_large(plan: ReadPlan, done: int, seconds: float, most_s: float) -> TooLargeError:
    """The error of an attempt that has read so much of its plan."""
    return TooLargeError(
        f"{done} of {len(plan.ranges)} ranges were read for {len(plan.shapes)} shapes after "
        f"{seconds_text(seconds)}, so the snapshot takes longer than postgres.max_attempt, "
        f"{seconds_text(most_s)}; raise that if it is less than 5 hours, or postgres.connections"
    )
