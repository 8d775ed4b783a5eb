"""``UpgradeDrain``: ends capture once everything is confirmed, and seals the slot (``--before-upgrade``).

pg_upgrade keeps a slot if nothing has committed past its confirmed position. So capture continues until the whole WAL
of the server is confirmed, and no open transaction could still commit. Then it compares the tables of the shapes with
the catalog once more, and creates the seal (:mod:`flushtracker.postgres.upgrade_seal`) at the same position. Later
commits make pg_upgrade refuse, and commits before the comparison were confirmed. The token of the seal
is recorded in the registry, where the next capture of this server clears it.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from flushtracker.errors import PostgresError
from flushtracker.postgres.connection import Connection
from flushtracker.postgres.slot import read_slot_status
from flushtracker.postgres.upgrade_check import read_upgrade_facts
from flushtracker.postgres.upgrade_seal import create_seal, drop_seals
from flushtracker.process.clock import now_ms
from flushtracker.status.upgrade_facts import FREE_A_SLOT, KEEPS_SLOTS_SINCE, upgrade_findings
from flushtracker.wal.lsn import format_lsn

logger = logging.getLogger(__name__)

_LOG_S: Final = 10.0
_LEFT: Final = frozenset({"upgrade_other_slots", "upgrade_not_sealed"})
"""Problems that capture need not wait for."""


class UpgradeDrain:
    """The drain of one connection.

    ``check_tables`` compares the tables of the shapes with the catalog. ``record`` publishes a seal's token with the
    source, and returns once that is confirmed.
    """

    def __init__(
        self,
        connection: Connection,
        slot: str,
        system_id: str,
        check_tables: Callable[[], None],
        record: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._slot = slot
        self._system_id = system_id
        self._check_tables = check_tables
        self._record = record
        self._next_log_s = 0.0

    def is_done(self) -> bool:
        """Whether everything is confirmed and the slot is sealed; if not, the reason is logged now and then.

        Raises:
            PostgresError: pg_upgrade does not keep slots of this server version, or there is no free slot for the seal.
        """
        facts = read_upgrade_facts(self._connection, self._slot)
        if facts.is_standby or facts.version < KEEPS_SLOTS_SINCE:
            raise PostgresError(
                f"pg_upgrade keeps no slot of this server (PostgreSQL {facts.version}, standby: {facts.is_standby}): "
                f"upgrade, and start capture with --create --upgraded-from {self._system_id}: all shapes begin again"
            )
        if facts.free_slots < 1:
            raise PostgresError(f"this server has no free slot for the seal of slot {self._slot}: {FREE_A_SLOT}")
        slot = read_slot_status(self._connection, self._slot, now_ms())
        if slot is None:
            return False
        own = [each for each in upgrade_findings(facts, slot) if each.kind not in _LEFT]
        if own:
            self._log(own[0].text)
            return False
        self._check_tables()
        seal = create_seal(self._connection, self._slot, self._system_id)
        if seal.confirmed_lsn != facts.written_lsn:
            drop_seals(self._connection, self._slot)
            self._log(f"the slot was confirmed to {format_lsn(seal.confirmed_lsn)} meanwhile")
            return False
        self._record(seal.token)
        logger.warning(
            "slot sealed for an upgrade, stop the server now slot=%s seal=%s confirmed_lsn=%s",
            *(self._slot, seal.name, format_lsn(seal.confirmed_lsn)),
        )
        return True

    def _log(self, reason: str) -> None:
        if time.monotonic() >= self._next_log_s:
            self._next_log_s = time.monotonic() + _LOG_S
            logger.info("not drained yet slot=%s reason=%s", self._slot, reason)
