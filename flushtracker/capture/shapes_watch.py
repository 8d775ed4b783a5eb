"""``ShapesWatch``: notices that ``conf/shapes.yaml`` has changed while capture runs."""

import logging
from collections.abc import Callable
from pathlib import Path

from flushtracker.errors import ConfigError, PostgresError, PostgresUnavailableError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import load_shapes

logger = logging.getLogger(__name__)


class ShapesWatch:
    """The shapes of the file at ``path``. What is wrong with it later is logged, once, and tried again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._followed: tuple[int, int, int] | None = None
        self._refused = ""

    def load(self) -> tuple[ShapeDefinition, ...]:
        """The shapes as the file has them now, for a start; raises ``ConfigError``."""
        before = self._signature()
        definitions = load_shapes(self._path)
        self._followed = before
        return definitions

    def follow(self, apply: Callable[[tuple[ShapeDefinition, ...]], None]) -> None:
        """Let ``apply`` have the shapes if the file is another than the one that was taken last.

        Raises:
            PostgresUnavailableError: ``apply`` could not ask the server; the file counts as not taken.
        """
        if self._signature() == self._followed:
            return
        try:
            before = self._signature()
            apply(load_shapes(self._path))
            self._followed, self._refused = before, ""
        except PostgresUnavailableError:
            raise
        except (ConfigError, PostgresError) as error:
            if str(error) != self._refused:
                logger.error("shapes not taken reason=%s", error)  # noqa: TRY400  the message is the whole reason
            self._refused = str(error)

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            facts = self._path.stat()
        except OSError:
            return None
        return (facts.st_mtime_ns, facts.st_size, facts.st_ino)
