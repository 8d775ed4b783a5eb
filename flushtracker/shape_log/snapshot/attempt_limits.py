"""Limits the duration of an attempt."""

from typing import Final

from flushtracker.config.units import seconds_text
from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.shape_log.snapshot.read_plan import ReadPlan

_TRIED_SHARE: Final = 0.1
"""The share of its time after which an attempt is judged by its rate."""


class SnapshotStoppedError(FlushtrackerError):
    """The job was stopped during an attempt, whose results are discarded."""

    exit_code = 0

    def __init__(self) -> None:
        super().__init__("stopped before the snapshot was complete; nothing of it was appended")


class TooLargeError(ConfigError):
    """The attempt takes, or would take, longer than allowed."""


def require_fitting(plan: ReadPlan, done: int, seconds: float, most_s: float) -> None:
    """Raise ``TooLargeError`` if the attempt would take too long at its rate and can be divided.

    The first ``done`` ranges took ``seconds``.
    """
    if len(plan.shapes) > 1 and seconds > _TRIED_SHARE * most_s and seconds * len(plan.ranges) > most_s * done:
        raise too_large(plan, done, seconds, most_s)


def too_large(plan: ReadPlan, done: int, seconds: float, most_s: float) -> TooLargeError:
    return TooLargeError(
        f"{done} of {len(plan.ranges)} ranges were read for {len(plan.shapes)} shapes after "
        f"{seconds_text(seconds)}, so the snapshot takes longer than snapshot.max_attempt, "
        f"{seconds_text(most_s)}; raise that if it is less than 5 hours, or snapshot.connections"
    )
