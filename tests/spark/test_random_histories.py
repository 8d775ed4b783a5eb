"""Random histories through the real query: each is its own source, all share one stream, every batch is checked."""

import random
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from tests.support.exact_ack import Delivered
from tests.support.job_folder import JobFolder
from tests.support.random_wal import Case, random_batches, random_flushes, random_history, random_stream
from tests.support.seeds import in_turn
from tests.support.wal_history import Event

_SOURCES: Final = 60
_BATCHES: Final = 5


def _case(seed: int) -> Case:
    rng = random.Random(seed)  # noqa: S311  a reproducible test history
    history = random_history(rng, f"seed-{seed}/1/s", size=rng.randint(1, 8), bare_commits=rng.random() < 0.5)
    return Case(history, random_stream(rng, history, runs=rng.randint(0, 2)), random_flushes(rng, history))


def _cut(case: Case, seed: int) -> list[list[Event]]:
    rng = random.Random(seed)  # noqa: S311  likewise
    batches = random_batches(rng, [case.stream], case.flushes, most=_BATCHES)
    return [*batches, *([] for _ in range(_BATCHES - len(batches))), list[Event](case.history.last_flushes())]


@pytest.mark.parametrize("shape_groups", in_turn([0, 3]))
def test_query_acknowledges_exactly_what_is_safe_after_every_batch(
    spark: SparkSession, tmp_path: Path, shape_groups: int
) -> None:
    """The oracle agrees with the query on sixty histories with resends, removals and duplicates."""
    cases = [_case(seed) for seed in range(_SOURCES)]
    cuts = [_cut(case, seed) for seed, case in enumerate(cases)]
    job = JobFolder(tmp_path)
    for number in range(_BATCHES + 1):
        job.write([event for cut in cuts for event in cut[number]])
    job.run(spark, shape_groups=shape_groups)
    for case, cut in zip(cases, cuts, strict=True):
        acks, ack_lsn, oracle = job.ack_lsns(case.history.source), -1, Delivered(case.history)
        for number, events in enumerate(cut):
            oracle.add(events)
            assert acks.get(number, ack_lsn + 1) > ack_lsn
            ack_lsn = acks.get(number, ack_lsn)
            oracle.assert_exact(ack_lsn)
        assert ack_lsn == max(fragment.lsn for fragment in case.stream if fragment.commit)
