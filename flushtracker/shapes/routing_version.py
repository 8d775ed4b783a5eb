"""``routing_version``: the version of the rules by which changes become items of shapes' logs.

The rules are ``where``, the router and the items that it makes.

A log written under one version of the rules is not the shape's query under another. Besides, the tracker treats a
resent transaction as done for each shape that has nothing pending, so a resend must be routed as before. So the
registry stores the version by which a source is routed. Before capture routes by another version, it ends the shapes
that the difference affects.

``tests/unit/shapes/test_routing_version.py`` routes a recorded workload and thousands of conditions, and fails if the
outcome differs from this version's. Then either restore the outcome or add a :class:`RoutingChange`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flushtracker.shapes.definition import ShapeDefinition


@dataclass(frozen=True, slots=True)
class RoutingChange:
    """A change of the rules: ``reason`` describes it, and ``concerns`` selects the affected shapes."""

    reason: str
    concerns: Callable[[ShapeDefinition], bool]


ROUTING_CHANGES: Final[list[RoutingChange]] = []
"""The changes since version 1, in order: the first led to version 2."""


def routing_version() -> int:
    return 1 + len(ROUTING_CHANGES)


def routing_reason(definition: ShapeDefinition, since: int) -> str | None:
    """Why a shape that was routed by version ``since`` cannot be continued, ``None`` if it can."""
    for change in ROUTING_CHANGES[since - 1 :]:
        if change.concerns(definition):
            return change.reason
    return None
