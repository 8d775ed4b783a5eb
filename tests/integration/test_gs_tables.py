"""The tables on ``gs://``, without Spark, on a stand-in that has the condition of Google's object store.

``tests/integration/test_s3_tables.py`` has what does not depend on the store.
"""

from collections.abc import Iterator
from typing import IO

import pytest

from flushtracker.errors import SinkError
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.tracking.acks.ack_table import AckTable
from tests.support.faulty_proxy import RESET, Fault, faulty_proxy
from tests.support.object_store import google_options, running_store
from tests.support.racing_entries import GOOGLE_URI, racing_programs_replace_no_commit
from tests.support.shape_log_rows import SOURCE
from tests.support.store_tables import ack, log_is_claimed_appended_merged_and_read, lost_answer_is_no_second_commit


@pytest.fixture
def store() -> Iterator[tuple[int, IO[str]]]:
    with running_store() as found:
        yield found


def test_each_commit_is_on_the_condition_that_its_version_is_new(store: tuple[int, IO[str]]) -> None:
    """Without an option of the user's, so that it cannot replace another one's."""
    port, printed = store
    options = google_options(port)
    first, second = (AckTable("gs://bucket/acks", options) for _ in range(2))
    first.fence_others()
    second.fence_others()
    with pytest.raises(SinkError, match="this driver has been fenced"):
        first.append(ack(1))
    found = [printed.readline().split() for _ in range(3)]
    assert found == [[f"acks/_delta_log/{version:020}.json", "generation=0"] for version in range(3)]
    assert second.append(ack(2)) == 1
    assert AckReader("gs://bucket/acks", options).last_ack(SOURCE) == 2


def test_programs_that_race_replace_no_commit(store: tuple[int, IO[str]]) -> None:
    racing_programs_replace_no_commit(store[0], GOOGLE_URI)


@pytest.mark.parametrize("status", [500, 503, RESET])
def test_commit_whose_answer_is_lost_is_there_once(store: tuple[int, IO[str]], status: int) -> None:
    fault = Fault(r"PUT .*log%2F\d{19}[2-9]%2Ejson", status, takes_effect=True)
    with faulty_proxy(store[0]) as proxy:
        lost_answer_is_no_second_commit("gs://bucket/acks", google_options, proxy, fault)


def test_log_is_claimed_appended_merged_and_read(store: tuple[int, IO[str]]) -> None:
    log_is_claimed_appended_merged_and_read("gs://bucket/log", google_options(store[0]))
