"""Random histories of a source and its followers: lost slots, restored backups, shapes that are evicted or end."""

import os
from pathlib import Path
from typing import Final

import pytest

from flushtracker.local.postgres import LocalPostgres
from tests.support.local_loop import LocalLoop
from tests.support.seeds import seeds
from tests.support.source_history import TABLES, SourceHistory

_SEEDS: Final = int(os.environ.get("FLUSHTRACKER_HISTORY_SEEDS", "1"))
_EVENTS: Final = 6


@pytest.fixture(autouse=True)
def tables(postgres: LocalPostgres) -> None:
    """They have rows before there is a slot."""
    postgres.execute(*TABLES)


@pytest.mark.parametrize("seed", seeds(_SEEDS))
def test_shapes_heal_from_whatever_happens_to_their_source(loop: LocalLoop, postgres_folder: Path, seed: int) -> None:
    """After each event a reader has the query's rows, and so have followers, which are never told to begin again.

    So have clients of HTTP servers, some of which show changes before the log has them.
    """
    history = SourceHistory(loop, postgres_folder, seed)
    with history.readers:
        history.play(_EVENTS)
    assert history.readers.ahead > 0
