"""Random histories of a source and its followers: lost slots, restored backups, shapes that are evicted or end."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from flushtracker.local.postgres import LocalPostgres
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig
from tests.support.local_loop import LocalLoop
from tests.support.source_history import TABLES, SourceHistory

_SEEDS: Final = int(os.environ.get("FLUSHTRACKER_HISTORY_SEEDS", "2"))
_EVENTS: Final = 6


@pytest.fixture
def loop(
    postgres: LocalPostgres,
    broker: Broker,
    tmp_path: Path,
    topic_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LocalLoop]:
    """A server with tables that have rows; nothing is captured yet."""
    postgres.execute(*TABLES)
    rig = CaptureRig(postgres, broker.bootstrap_servers, tmp_path, topic_name)
    rig.create()
    loop = LocalLoop(rig, monkeypatch)
    yield loop
    rig.close()
    loop.close()
    # The fixture stops the first one.
    rig.server.stop()


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_shapes_heal_from_whatever_happens_to_their_source(loop: LocalLoop, postgres_folder: Path, seed: int) -> None:
    """After each event a reader has the query's rows, and so have followers, which are never told to begin again."""
    SourceHistory(loop, postgres_folder, seed).play(_EVENTS)
