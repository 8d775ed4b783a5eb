"""``ShapesWatch``: applies changes of ``conf/shapes.yaml`` while capture runs."""

import logging
from collections.abc import Callable
from pathlib import Path

from flushtracker.errors import ConfigError, PostgresError, PostgresUnavailableError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import load_shapes

logger = logging.getLogger(__name__)


class ShapesWatch:
    """The shapes of the file at ``path``. After the start, an error in it is logged once and the file is retried."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._applied: tuple[int, int, int] | None = None
        self._last_error = ""

    def load(self) -> tuple[ShapeDefinition, ...]:
        """Read the shapes at the start; raises ``ConfigError``."""
        before = self._signature()
        definitions = load_shapes(self._path)
        self._applied = before
        return definitions

    def apply_file(self, apply: Callable[[tuple[ShapeDefinition, ...]], None]) -> None:
        """Pass the shapes to ``apply`` if the file has changed since it was last applied.

        Raises:
            PostgresUnavailableError: ``apply`` could not reach the server; the file counts as not applied.
        """
        if self._signature() == self._applied:
            return
        try:
            before = self._signature()
            apply(load_shapes(self._path))
            self._applied, self._last_error = before, ""
        except PostgresUnavailableError:
            raise
        except (ConfigError, PostgresError) as error:
            if str(error) != self._last_error:
                logger.error("shapes not applied reason=%s", error)  # noqa: TRY400  the message is the whole reason
            self._last_error = str(error)

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            facts = self._path.stat()
        except OSError:
            return None
        return (facts.st_mtime_ns, facts.st_size, facts.st_ino)
