"""``routing_version``: that of the rules by which a change becomes items of shapes' logs.

The rules are ``where``, the router and the items that it makes.

A log that was written by one version of the rules is not the query of a shape by another. And the tracker takes a
transaction that is resent as done for each shape that has nothing pending, so a resend must be routed as it was the
first time. So the registry has the version by which a source is routed, and before capture routes by another one, it
ends the shapes that the change concerns.

``tests/unit/test_routing_version.py`` routes a recorded workload and thousands of conditions, and fails where the
outcome differs from that of this version. Then either restore the outcome or add a :class:`RoutingChange`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flushtracker.shapes.definition import ShapeDefinition


@dataclass(frozen=True, slots=True)
class RoutingChange:
    """What a version changed: ``reason`` says how, and ``concerns`` for which shapes."""

    reason: str
    concerns: Callable[[ShapeDefinition], bool]


ROUTING_CHANGES: Final[list[RoutingChange]] = []
"""The changes since version 1, in order: the first led to version 2."""


def routing_version() -> int:
    """The version of this release."""
    return 1 + len(ROUTING_CHANGES)


def reason_to_end(definition: ShapeDefinition, since: int) -> str | None:
    """Why a shape that was routed by version ``since`` cannot be continued, ``None`` if it can."""
    for change in ROUTING_CHANGES[since - 1 :]:
        if change.concerns(definition):
            return change.reason
    return None
