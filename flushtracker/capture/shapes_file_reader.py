"""``ShapesFileReader``: reads ``conf/shapes.yaml`` at the start, and applies its changes while capture runs.

A removed shape never returns, so a half-written file must not be mistaken for one that removes shapes. A change is
therefore applied only after :data:`STEADY_CHECKS` checks in a row have found the same content, by its hash. At the
start the file is read at once, unless it was written within that time. A file that removes too many shapes even then is
refused by the registry (:meth:`~flushtracker.capture.shape_registry.ShapeRegistry.compare`).

Reading YAML takes 0.2 ms for each shape. A thread does it, so that meanwhile the stream is served.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from flushtracker.errors import ConfigError, PostgresError, PostgresUnavailableError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import ShapesFile, read_shapes

logger = logging.getLogger(__name__)

STEADY_CHECKS: Final = 3
"""The check that finds a change, and two more that find the same: at least four seconds at the default interval."""

_SHORT_S: Final = 0.2
"""A check waits this long for a small file; a larger one is left to a later check."""


class ShapesFileReader:
    """The shapes of the file at ``path``, checked every ``interval_s`` seconds.

    After the start, an error in the file is logged once, the shapes stay as they are, and the file is retried.
    ``wait`` waits for so many seconds, and returns true if capture is to stop; ``now_s`` returns seconds since 1970.
    """

    def __init__(
        self, path: Path, interval_s: float, wait: Callable[[float], bool], now_s: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._interval_s = interval_s
        self._wait = wait
        self._now_s = now_s
        self._seen: str | None = None
        self._seen_checks = 0
        self._applied: str | None = None
        self._reading: _Reading | None = None
        self._last_error = ""

    def wait_until_steady(self) -> bool:
        """Before :meth:`load`: wait until nobody writes the file. Returns false if capture is to stop first."""
        if self._was_just_written():
            logger.info("waiting until the shapes file stays the same path=%s", self._path)
            while not self._is_steady(self._content()):
                if self._wait(self._interval_s):
                    return False
        return True

    def load(self) -> ShapesFile:
        """Read the shapes at the start; raises ``ConfigError``."""
        content = self._content()
        shapes = read_shapes(self._path)
        self._applied = content
        return shapes

    def apply_file(
        self,
        apply: Callable[[Iterable[ShapeDefinition], int], None],
        add_delayed: Callable[[Iterable[ShapeDefinition]], None] | None = None,
    ) -> None:
        """Check the file, and pass its definitions and ``allow_removing`` to ``apply`` once a change is steady.

        If it has not changed, pass the definitions to ``add_delayed``, if that is given.

        Raises:
            PostgresUnavailableError: ``apply`` could not reach the server; the file counts as not applied.
        """
        content = self._content()
        is_steady = self._is_steady(content)
        is_applied = content == self._applied
        if is_applied and add_delayed is None:
            self._last_error = ""
            return
        if not is_steady and not is_applied:
            return
        reading = self._reading
        if reading is None or reading.content != content:
            reading = self._reading = _Reading(self._path, content)
        if not reading.is_done:
            return
        self._reading = None
        try:
            shapes = reading.result()
            if self._content() != content:
                # It changed between the hash and the reading.
                return
            if is_applied and add_delayed is not None:
                add_delayed(shapes.definitions)
            else:
                apply(shapes.definitions, shapes.allow_removing)
            self._applied, self._last_error = content, ""
        except PostgresUnavailableError:
            raise
        except (ConfigError, PostgresError) as error:
            if str(error) != self._last_error:
                logger.error("shapes not applied reason=%s", error)  # noqa: TRY400  the message is the whole reason
            self._last_error = str(error)

    def _is_steady(self, content: str | None) -> bool:
        """Count a check that found ``content``; return whether it was the same for long enough."""
        self._seen_checks = self._seen_checks + 1 if content == self._seen else 1
        self._seen = content
        return self._seen_checks >= STEADY_CHECKS

    def _was_just_written(self) -> bool:
        try:
            written_s = self._path.stat().st_mtime
        except OSError:
            return False
        return self._now_s() - written_s < (STEADY_CHECKS - 1) * self._interval_s

    def _content(self) -> str | None:
        """The hash of the file's content, ``None`` if it cannot be read."""
        try:
            return hashlib.sha256(self._path.read_bytes()).hexdigest()
        except OSError:
            return None


class _Reading:
    """A thread that reads a file, whose hash was ``content`` before."""

    def __init__(self, path: Path, content: str | None) -> None:
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
        """What a thread that is done has read; raises ``ConfigError``."""
        if self._shapes is None:
            raise self._error or RuntimeError(f"reading {self._path} has ended without a result")
        return self._shapes

    def _read(self) -> None:
        try:
            self._shapes = read_shapes(self._path)
        except Exception as error:  # noqa: BLE001  raised again where the result is used
            self._error = error
