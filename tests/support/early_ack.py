"""``python -m tests.support.early_ack``: flushtracker with a tracking job that does not wait for any shape.

A fault for ``flushtracker conformance-loop`` to find: the ack is the last commit seen, as if nothing were pending.
"""

import sys
from collections.abc import Mapping

from flushtracker.cli import run

if __name__ == "__main__":
    if "track" in sys.argv:
        from flushtracker.tracking.job.driver import AckDriver

        acknowledge = AckDriver._acknowledge

        def acknowledge_all(driver: AckDriver, acks: Mapping[str, int], batch_id: int) -> None:
            seen = {source: tracker.last_seen_offset.tx_offset for source, tracker in driver.trackers.items()}
            changed = {source: lsn for source, lsn in seen.items() if lsn > (driver._ack_table.last_ack(source) or -1)}
            acknowledge(driver, changed or acks, batch_id)

        AckDriver._acknowledge = acknowledge_all  # type: ignore[assignment, method-assign]
    run()
