"""``TrialResources``: everything that a trial creates on the server and the brokers, and removes at its end."""

import json
import logging
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final

from flushtracker.errors import ConfigError, FlushtrackerError, PostgresError
from flushtracker.events.topic_rules import ROLES
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.postgres.connection import connect, rows
from flushtracker.trials.loop_trial.bank_workload import create_tables, shape_definitions
from flushtracker.trials.loop_trial.trial_setup import TrialSetup
from flushtracker.wal.lsn import parse_lsn

logger = logging.getLogger(__name__)
_DROP_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.5
_TAKEN: Final = """
SELECT 'schema' FROM pg_namespace WHERE nspname = %(name)s
UNION ALL SELECT 'publication' FROM pg_publication WHERE pubname = %(name)s
UNION ALL SELECT 'replication slot' FROM pg_replication_slots WHERE slot_name = %(name)s
"""
_CREATE_SLOT: Final = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')"


class TrialResources:
    """A context manager that creates everything and removes it again. ``first_lsn`` is where the slot begins."""

    def __init__(self, setup: TrialSetup) -> None:
        self.first_lsn = -1
        self._setup = setup
        self._undo: list[tuple[str, Callable[[], object]]] = []

    def __enter__(self) -> "TrialResources":
        try:
            self._create()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _create(self) -> None:
        name = self._setup.name
        self._setup.shapes_file.write_text(json.dumps({"shapes": shape_definitions(name)}))
        admin = TopicAdmin(self._setup.kafka)
        with closing(connect(self._setup.connection)) as connection:
            if taken := rows(connection, _TAKEN, {"name": name}):
                raise ConfigError(f"the server has a {taken[0][0]} {name} already, and nothing of it is touched")
            self._undo.append((f"schema {name}", lambda: self._execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")))
            create_tables(connection, name)
            tables = ", ".join(f"{name}.{table}" for table in ("accounts", "ledger", "items"))
            self._undo.append((f"publication {name}", lambda: self._execute(f"DROP PUBLICATION IF EXISTS {name}")))
            rows(connection, f"CREATE PUBLICATION {name} FOR TABLE {tables}")
            self._undo.append((f"replication slot {name}", self._drop_slot))
            ((lsn,),) = rows(connection, _CREATE_SLOT, [name])
            self.first_lsn = parse_lsn(lsn)
        admin.create(ROLES)
        self._undo.append((f"topics {name}.*", lambda: admin.delete(ROLES)))

    def _remove(self) -> None:
        """Remove everything in reverse order; logs what cannot be removed, and continues."""
        while self._undo:
            what, undo = self._undo.pop()
            try:
                undo()
            except FlushtrackerError as error:
                logger.error("left behind what=%r error=%s", what, error)  # noqa: TRY400  one line

    def _execute(self, statement: str) -> None:
        with closing(connect(self._setup.connection)) as connection:
            rows(connection, statement)

    def _drop_slot(self) -> None:
        """Retries for a while, because the server may not have noticed at once that capture was killed."""
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
        deadline = time.monotonic() + _DROP_TIMEOUT_S
        with closing(connect(self._setup.connection)) as connection:
            while time.monotonic() < deadline:
                with suppress(PostgresError):
                    rows(connection, drop, [self._setup.name])
                    return
                time.sleep(_POLL_S)
            rows(connection, drop, [self._setup.name])
