"""A server of one version and a broker, on which histories of schemas are played, one after the other."""

import gc
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from tests.support.capture_rig import CaptureRig
from tests.support.new_server import new_server, server_folder
from tests.support.schema_history import History
from tests.support.schema_play import RuleBrokenError, SchemaPlay
from tests.support.server_versions import binaries_of

DEADLINE_S: Final = 15.0
_REPLAY_DEADLINE_S: Final = 2.0
_INTERVALS: Final = {"status": "50 ms", "acks": "100 ms", "keepalive": "30 ms", "shapes": "20 ms"}


class Stage:
    """Plays histories, each with topics of its own."""

    def __init__(self, server: LocalPostgres, bootstrap_servers: str, folder: Path) -> None:
        self._server = server
        self._bootstrap_servers = bootstrap_servers
        self._folder = folder
        self._played = 0

    def play(self, history: History, deadline_s: float = DEADLINE_S) -> Counter[str]:
        """Play a history, and return what it has shown; raises ``RuleBrokenError``."""
        self._played += 1
        folder = self._folder / str(self._played)
        rig = CaptureRig(self._server, self._bootstrap_servers, folder, lambda role: f"{role}-{uuid.uuid4().hex[:12]}")
        rig.settings["kafka"]["partitions"] = 1
        rig.settings["capture"]["intervals"] = _INTERVALS
        play = SchemaPlay(rig, history, deadline_s)
        try:
            return play.run()
        finally:
            play.close()
            # A Kafka client has threads and pipes until it is collected, and capture that was killed keeps its own.
            gc.collect()

    def replay(self, history: History) -> RuleBrokenError | None:
        """Play a history with less patience; returns how the rule is broken, ``None`` if it is not."""
        try:
            self.play(history, _REPLAY_DEADLINE_S)
        except RuleBrokenError as broken:
            # Its frames keep the clients of a capture that was killed.
            return broken.with_traceback(None)
        return None


@contextmanager
def schema_stage(version: int, bootstrap_servers: str | None = None) -> Iterator[Stage]:
    """A stage with a server of this version, and unless one is named or running, a broker, until the body ends."""
    named = bootstrap_servers or os.environ.get("FLUSHTRACKER_TEST_KAFKA")
    with server_folder() as folder, new_server(folder / "server", binaries_of(version)) as server:
        (folder / "histories").mkdir()
        if named:
            yield Stage(server, named, folder / "histories")
        else:
            with LocalBroker(folder / "broker") as broker:
                yield Stage(server, broker.bootstrap_servers, folder / "histories")
