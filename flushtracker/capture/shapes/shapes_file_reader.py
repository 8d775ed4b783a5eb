"""``ShapesFileReader``: reads ``conf/shapes.yaml`` at the start, and applies changes while capture runs.

A removed shape never returns, so a half-written file must not be mistaken for one that removes shapes. A change is
therefore applied only after :data:`STEADY_CHECKS` checks in a row have found the same content. At the start the file is
read at once, unless it was written within that time. A file that removes too many shapes even then is refused by the
registry (:meth:`~flushtracker.capture.shapes.shape_registry.ShapeRegistry.compare`). The content of a folder is that of
its files.

Parsing YAML takes 0.2 ms for each shape. It is done in a thread, so that the stream continues meanwhile.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from flushtracker.capture.shapes.refused_shapes import RefusedShapes
from flushtracker.config.yaml_tree import read_files
from flushtracker.errors import ConfigError, PostgresError, PostgresUnavailableError
from flushtracker.shapes.shapes_file import ShapesFile, parse_shapes

logger = logging.getLogger(__name__)

STEADY_CHECKS: Final = 3
"""The check that finds a change, and two more with the same content: at least four seconds at the default interval."""

_SHORT_S: Final = 0.2
"""A check waits this long for a small file; a larger one is left to a later check."""

_Content: TypeAlias = Mapping[Path, bytes] | str
"""The files, or why they cannot be read."""


class ShapesFileReader:
    """The shapes of the file or the folder at ``path``, checked every ``interval_s`` seconds.

    After the start, a file that cannot be applied as a whole is reported to ``refused``, the shapes stay as they are,
    and the file is retried. Errors of single entries are not handled here. ``wait`` waits for this many seconds and
    returns true if capture is to stop; ``now_s`` returns seconds since 1970.
    """

    def __init__(
        self,
        path: Path,
        interval_s: float,
        wait: Callable[[float], bool],
        refused: RefusedShapes,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._interval_s = interval_s
        self._wait = wait
        self._now_s = now_s
        self._seen: _Content | None = None
        self._seen_checks = 0
        self._applied: _Content | None = None
        self._reading: _Reading | None = None
        self._refused = refused
        self._failed: _Content | None = None
        """The content last tried, if it could not be applied as a whole."""

    def wait_until_steady(self) -> bool:
        """Wait until the file is steady, before :meth:`load`. Returns false if capture is to stop first."""
        if self._was_just_written():
            logger.info("waiting until the shapes file stays the same path=%s", self._path)
            while not self._is_steady(self._content()):
                if self._wait(self._interval_s):
                    return False
        return True

    def load(self) -> ShapesFile:
        """Read the shapes at the start; raises ``ConfigError``."""
        content = self._content()
        shapes = _parsed(content)
        self._applied = content
        return shapes

    def apply_file(self, apply: Callable[[ShapesFile], None], retry: Callable[[], None] | None = None) -> None:
        """Check the file, and pass it to ``apply`` once a change is steady. If nothing has changed, call ``retry``.

        Raises:
            PostgresUnavailableError: ``apply`` or ``retry`` could not reach the server; a change is not applied.
        """
        content = self._content()
        is_steady = self._is_steady(content)
        if content == self._applied:
            if retry is not None:
                self._try(content, retry)
            elif content != self._failed:
                self._refused.accept_file()
            return
        if not is_steady:
            return
        reading = self._reading
        if reading is None or reading.content != content:
            reading = self._reading = _Reading(self._path, content)
        if reading.is_done:
            self._reading = None
            self._try(content, lambda: apply(reading.result()))

    def _try(self, content: _Content, apply: Callable[[], None]) -> None:
        try:
            apply()
        except PostgresUnavailableError:
            raise
        except (ConfigError, PostgresError) as error:
            self._failed = content
            self._refused.refuse_file(error)
        else:
            self._applied, self._failed = content, None
            self._refused.accept_file()

    def _is_steady(self, content: _Content) -> bool:
        """Count a check that found ``content``; return whether it has been the same for long enough."""
        self._seen_checks = self._seen_checks + 1 if content == self._seen else 1
        self._seen = content
        return self._seen_checks >= STEADY_CHECKS

    def _was_just_written(self) -> bool:
        try:
            # A folder's mtime changes when a name in it changes.
            written_s = max(each.stat().st_mtime for each in (self._path, *read_files(self._path)))
        except (OSError, ConfigError):
            return False
        return self._now_s() - written_s < (STEADY_CHECKS - 1) * self._interval_s

    def _content(self) -> _Content:
        try:
            return read_files(self._path)
        except ConfigError as error:
            return str(error)


def _parsed(content: _Content) -> ShapesFile:
    if isinstance(content, str):
        raise ConfigError(content)
    return parse_shapes(content)


class _Reading:
    def __init__(self, path: Path, content: _Content) -> None:
        self.content = content
        self._path = path
        self._shapes: ShapesFile | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="shapes file", daemon=True)
        self._thread.start()
        self._thread.join(_SHORT_S)
        if not self.is_done:
            logger.info("reading a large shapes file path=%s", path)

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> ShapesFile:
        """The result of a finished thread; raises ``ConfigError``."""
        if self._shapes is None:
            raise self._error or RuntimeError(f"reading {self._path} has ended without a result")
        return self._shapes

    def _read(self) -> None:
        try:
            self._shapes = _parsed(self.content)
        except Exception as error:  # noqa: BLE001  raised again where the result is used
            self._error = error
