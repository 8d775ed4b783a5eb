"""Random changes of schemas and rows on a real server: each shape equals its query, or has ended by itself."""

import os
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from flushtracker.local.postgres import LocalPostgres
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig
from tests.support.schema_history import History, random_history
from tests.support.schema_play import RuleBrokenError, SchemaPlay
from tests.support.schema_shrink import shrink

_SEEDS: Final = int(os.environ.get("FLUSHTRACKER_SCHEMA_SEEDS", "10"))
_FIRST_SEED: Final = int(os.environ.get("FLUSHTRACKER_SCHEMA_FIRST_SEED", "0"))
_REPLAYS: Final = int(os.environ.get("FLUSHTRACKER_SCHEMA_REPLAYS", "60"))
_DEADLINE_S: Final = 15.0
_REPLAY_DEADLINE_S: Final = 2.0
_INTERVALS: Final = {"status": "50 ms", "acks": "100 ms", "keepalive": "30 ms", "shapes": "20 ms"}


class Stage:
    """A server and a broker on which histories are played, one after the other."""

    def __init__(self, server: LocalPostgres, broker: Broker, folder: Path) -> None:
        self._server = server
        self._broker = broker
        self._folder = folder
        self._played = 0
        self.counts: Counter[str] = Counter()

    def play(self, history: History, deadline_s: float) -> Counter[str]:
        """Play a history with topics of its own; raises ``RuleBrokenError``."""
        self._played += 1
        folder = self._folder / str(self._played)
        rig = CaptureRig(
            self._server, self._broker.bootstrap_servers, folder, lambda role: f"{role}-{uuid.uuid4().hex[:12]}"
        )
        rig.settings["kafka"]["partitions"] = 1
        rig.settings["intervals"] = _INTERVALS
        play = SchemaPlay(rig, history, deadline_s)
        try:
            return play.run()
        finally:
            play.close()

    def replay(self, history: History) -> RuleBrokenError | None:
        try:
            self.play(history, _REPLAY_DEADLINE_S)
        except RuleBrokenError as broken:
            return broken
        return None


@pytest.fixture(scope="module")
def stage(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="flushtracker-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        with LocalPostgres(Path(name) / "server") as server:
            stage = Stage(server, broker, tmp_path_factory.mktemp("histories"))
            yield stage
            print({name: stage.counts[name] for name in sorted(stage.counts)})  # noqa: T201  pytest -s shows it


@pytest.mark.parametrize("seed", range(_FIRST_SEED, _FIRST_SEED + _SEEDS))
def test_each_shape_equals_its_query_or_has_ended(stage: Stage, seed: int) -> None:
    """Whatever is done to its table, and whether capture runs meanwhile or not."""
    history = random_history(seed)
    try:
        counts = stage.play(history, _DEADLINE_S)
    except RuleBrokenError as broken:
        shortest, what = shrink(history, broken, stage.replay, _REPLAYS)
        pytest.fail(f"seed {seed}: {broken}\n\nThe shortest history found:\n{shortest}\n\n{what}", pytrace=False)
    stage.counts += counts
    assert counts["shapes with rows after a schema change"] > 0
    assert counts["shapes live at the end"] < counts["shapes"], "some survive, and some end"
