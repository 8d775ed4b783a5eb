"""What must hold at the demo's end: everything is acknowledged, and each folded log equals its query."""

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from flushtracker.capture.capture_config import CaptureConfig
from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.operate.status.slot_view import SlotView
from flushtracker.postgres.connection import connect
from flushtracker.postgres.shape_rows import shape_rows
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.trials.recordings.verify import differences

_TIMEOUT_S: Final = 300.0
"""Also for programs that are started again meanwhile."""
_POLL_S: Final = 0.2


def await_ack(view: SlotView, step: Callable[[], None]) -> None:
    """Wait until everything that the server has written so far is acknowledged; raises ``FlushtrackerError``."""
    written_lsn: int | None = None
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        overview = view.query()
        # The server may be started again at the moment.
        if written_lsn is None and overview.slot.value is not None:
            written_lsn = overview.slot.value.written_lsn
        if written_lsn is not None and overview.ack_lsn is not None and overview.ack_lsn >= written_lsn - 1:
            return
        step()
        if time.monotonic() > deadline:
            holders = () if overview.job_source is None else overview.job_source.holders
            held = f"; held back by {holders[0].shape_id}" if holders else ""
            raise overview.slot.error or FlushtrackerError(
                f"what was written last is not acknowledged after {_TIMEOUT_S:.0f} s{held}"
            )
        time.sleep(_POLL_S)


def check_all(config: CaptureConfig, log: Path, step: Callable[[], None]) -> str:
    """As :func:`check_shapes`, once every shape can be read: one that was just added has no snapshot yet."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return check_shapes(config, log)
        except ConfigError:
            if time.monotonic() > deadline:
                raise
        step()
        time.sleep(_POLL_S)


def check_shapes(config: CaptureConfig, log: Path) -> str:
    """Compare every shape of the demo; returns the result as text, or raises ``FlushtrackerError`` if one differs."""
    shapes = {definition.id: definition for definition in load_shapes(config.shapes)}
    count = 0
    with closing(connect(config.postgres.connection)) as connection:
        for shape_id, rows, difference in differences(
            ShapeLogReader(str(log)), shapes, partial(shape_rows, connection)
        ):
            count += rows
            if difference is not None:
                raise FlushtrackerError(f"shape {shape_id} differs from its table: {difference}")
    return f"{len(shapes)} shapes: folding each log gives its query over the table, {count:,} rows in all"
