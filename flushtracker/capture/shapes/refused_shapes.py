"""``RefusedShapes``: the entries of the shapes file that capture has refused, and why, until the file is corrected.

A bad entry does not stop the others. Capture applies the correct ones, leaves the shapes of the rest as they are, and
reports the errors through this class in its log and its status.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias

from flushtracker.errors import FlushtrackerError, PostgresError, PostgresUnavailableError, ShapeError
from flushtracker.shapes.definition import ShapeDefinition, ShapeFault, faults_of
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.status.capture_status import RefusedShape

logger = logging.getLogger(__name__)

Resolved: TypeAlias = Sequence[tuple[ShapeDefinition, TableBinding]]
"""Definitions, completed from the catalog, each with its table; one with subqueries is repeated with each other
table.
"""
Resolve: TypeAlias = Callable[[Sequence[ShapeDefinition]], Resolved]
"""Raises an error that includes those of all refused definitions."""

_MOST_SHOWN: Final = 20
"""The log and the status show only this many faults, the first ones."""


class RefusedShapes:
    """One per process; ``shown`` and ``count`` may be read from any thread."""

    def __init__(self) -> None:
        self._file: FlushtrackerError | None = None
        self._faults: tuple[ShapeFault, ...] = ()
        self._catalog_faults: tuple[ShapeFault, ...] = ()
        self._logged = frozenset[str]()
        self.definitions: tuple[ShapeDefinition, ...] = ()
        """The definitions that the catalog does not allow, and may allow later."""
        self.shown: tuple[RefusedShape, ...] = ()
        self.count = 0
        """The number of refused entries; a file that is refused as a whole counts as one."""

    def refuse_file(self, error: FlushtrackerError) -> None:
        """Note that the file as a whole was refused; all shapes stay as they are."""
        self._file = error
        self._update()

    def accept_file(self) -> None:
        if self._file is not None:
            self._file = None
            self._update()

    def set_faults(self, faults: Iterable[ShapeFault]) -> None:
        """Set the faults of the file's entries, except those that need the catalog."""
        self._faults = tuple(faults)
        self._update()

    def add_faults(self, faults: Iterable[ShapeFault]) -> None:
        self.set_faults((*self._faults, *faults))

    def resolve(self, definitions: Sequence[ShapeDefinition], resolve: Resolve) -> Resolved:
        """Call ``resolve`` with the definitions that the catalog allows; refuse the others.

        Raises:
            PostgresUnavailableError: the server cannot be reached.
        """
        resolved, errors = resolve_allowed(definitions, resolve)
        self.definitions = tuple(each for each in definitions if each.id in errors)
        self._catalog_faults = tuple(
            fault for each in self.definitions for fault in faults_of(each.id, errors[each.id])
        )
        return resolved

    def _update(self) -> None:
        faults = (*self._faults, *self._catalog_faults)
        file = () if self._file is None else (ShapeFault(None, self._file),)
        ids = [fault.shape_id for fault in (*file, *faults)]
        self.count = len({shape_id for shape_id in ids if shape_id is not None}) + ids.count(None)
        self.shown = tuple(
            RefusedShape(each.shape_id, str(each.error)) for each in islice((*file, *faults), _MOST_SHOWN)
        )
        self._log()

    def _log(self) -> None:
        """Log each refused entry once until it is corrected."""
        reasons = {refused.reason: refused for refused in self.shown}
        for reason, refused in reasons.items():
            if reason in self._logged:
                continue
            if self._file is not None and reason == str(self._file):
                logger.error("shapes not applied reason=%s", reason)
            else:
                logger.error("shape refused shape_id=%s reason=%s", refused.shape_id, reason)
        if self._logged and not reasons:
            logger.info("nothing of the shapes file is refused any more")
        self._logged = frozenset(reasons)


def resolve_allowed(
    definitions: Sequence[ShapeDefinition], resolve: Resolve
) -> tuple[Resolved, dict[str, FlushtrackerError]]:
    """Call ``resolve`` with the definitions that the catalog allows; also return the errors of the others, by id.

    Raises:
        PostgresUnavailableError: the server cannot be reached.
    """
    errors: dict[str, FlushtrackerError] = {}
    while allowed := [definition for definition in definitions if definition.id not in errors]:
        try:
            return resolve(allowed), errors
        except PostgresUnavailableError:  # noqa: PERF203  the allowed ones are tried again
            raise
        except (ShapeError, PostgresError) as error:
            errors.update(error.shape_errors or {definition.id: error for definition in allowed})
    return (), errors
