"""What clients of a loop saw, and the rule that it breaks; and what a trial writes and creates."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import pytest

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.job_config import load_config
from flushtracker.config.serve_config import load_serve_config
from flushtracker.config.write_config import load_write_config
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.trials.loop_trial.bank_workload import LEDGER_SHAPES, shape_definitions
from flushtracker.trials.loop_trial.history import ClientTransaction, History, Outcome, Rule
from flushtracker.trials.loop_trial.trial_setup import SERVERS, create_setup
from tests.support.config_file import write_config

SETTINGS: Final[Mapping[str, Any]] = {
    "postgres": {"host": "localhost", "user": "postgres", "password": "${TRIAL_PASSWORD}"},
    "kafka": {
        "bootstrap_servers": "localhost:9092",
        "options": {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "secret1"},
    },
    "storage": {
        "path": "s3://bucket/trials/",
        "s3": {"region": "eu", "access_key_id": "k", "secret_access_key": "secret3", "path_style": True},
        "options": {"AWS_CONDITIONAL_PUT": "etag"},
    },
    "spark": {"spark.executor.memory": "2g"},
}


def history(outcome: Outcome = "committed") -> History:
    """Transaction 1, committed by 200, has the parts 0 and 1 for the shape a; transaction 2 runs."""
    found = History(total=1000, first_lsn=100)
    found.transactions[1] = ClientTransaction({"a": frozenset({0, 1}), "b": frozenset()}, outcome, 200)
    found.transactions[2] = ClientTransaction({"a": frozenset({0}), "b": frozenset({1})})
    return found


def test_a_loop_that_keeps_its_promise_breaks_no_rule() -> None:
    """The slot waits for the ack, which waits for the shapes; a commit shows before its client knows of it."""
    seen = history()
    seen.observe_slot(100, None)
    seen.observe_ledger("a", [])
    seen.observe_ledger("a", [(1, 0), (1, 1)])
    seen.observe_slot(100, 200)
    seen.observe_slot(201, 200)
    seen.observe_ledger("a", [(1, 1), (1, 0), (2, 0)])
    seen.observe_ledger("b", [(2, 1)])
    seen.observe_accounts([400, 600], 2)
    seen.observe_over_http("a", 199, [])
    seen.observe_over_http("a", 200, [(1, 0), (1, 1)])
    seen.observe_accounts([400, 600], 2, over_http=True)
    seen.observe_acks([100, 200, 300])
    seen.transactions[2].outcome = "committed"
    seen.end()
    assert seen.violations == {}
    assert (seen.reads, seen.http_reads, seen.committed, seen.confirmed_lsn) == (5, 3, 2, 201)


def test_the_slot_is_past_the_ack() -> None:
    seen = history()
    seen.observe_slot(202, 200)
    assert seen.violations == {"slot": "the slot is at 0/CA, but may be at 0/C9 at most"}


def test_an_ack_goes_back() -> None:
    seen, table = history(), history()
    seen.observe_slot(100, 200)
    seen.observe_slot(100, 199)
    assert seen.violations == {"ack": "the ack went back from 0/C8 to 0/C7"}
    table.observe_acks([100, 200, 200])
    assert table.violations == {"ack": "the ack 0/C8 follows 0/C8"}


@pytest.mark.parametrize(("confirmed_lsn", "ack_lsn"), [(100, 200), (201, None)])
def test_what_a_shape_lacks_is_acknowledged_or_confirmed(confirmed_lsn: int, ack_lsn: int | None) -> None:
    """Each is enough by itself; one LSN less is not."""
    seen, before = history(), history()
    seen.observe_slot(confirmed_lsn, ack_lsn)
    seen.observe_ledger("a", [])
    assert seen.violations["durable"] == "transaction 1 is acknowledged by 0/C8, but not in a"
    before.observe_slot(confirmed_lsn - 1, None if ack_lsn is None else ack_lsn - 1)
    before.observe_ledger("a", [])
    assert "durable" not in before.violations


@pytest.mark.parametrize("rows", [[(1, 0)], [(1, 0), (1, 1), (1, 1)], [(1, 0), (1, 2)]])
def test_a_read_has_part_of_a_transaction(rows: list[tuple[int, int]]) -> None:
    """Or a row of it twice, or one that the shape should not have."""
    seen = history()
    seen.observe_ledger("a", rows)
    assert seen.violations.keys() == {"whole"}


@pytest.mark.parametrize("balances", [[400, 601], [1000], [400, 300, 300]])
def test_a_read_has_half_a_transfer(balances: list[int]) -> None:
    seen = history()
    seen.observe_accounts(balances, 2)
    assert seen.violations.keys() == {"whole"}


def test_a_read_loses_what_another_one_has_shown() -> None:
    """Whether or not it was confirmed; in the end the shape lacks it."""
    seen = history("unknown")
    seen.observe_ledger("a", [(1, 0), (1, 1)])
    seen.observe_ledger("a", [])
    assert seen.violations == {"forward": "a has shown transaction 1, and shows it no more"}


@pytest.mark.parametrize("rows", [[(1, 0), (1, 1)], [(3, 0)]])
def test_a_read_has_what_never_committed(rows: list[tuple[int, int]]) -> None:
    seen = history("rolled back")
    seen.observe_ledger("a", rows)
    assert seen.violations.keys() == {"exact"}


_WHOLE = [(1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("outcome", "lsn", "reads", "fact"),
    [
        ("committed", 200, [[]], "a lacks transaction 1, but should have everything up to 0/C8"),
        ("committed", 100, [[(1, 0)]], "a has 1 rows of transaction 1, which has 2 for it"),
        ("committed", 100, [_WHOLE, []], "a has shown transaction 1, and shows it no more"),
        ("rolled back", 100, [_WHOLE], "a has rows of transaction 1, which never committed"),
        ("unknown", 100, [_WHOLE], "a has shown transaction 1, which its log never got"),
    ],
)
def test_a_client_over_http_sees_what_it_should_not(
    outcome: Outcome, lsn: int, reads: list[list[tuple[int, int]]], fact: str
) -> None:
    """The log's own reads break no rule."""
    seen = history(outcome)
    for rows in reads:
        seen.observe_over_http("a", lsn, rows)
    if outcome == "unknown":
        seen.end()
    assert seen.violations == {"http": f"over HTTP, {fact}"}


def test_a_client_over_http_sees_half_a_transfer() -> None:
    seen = history()
    seen.observe_accounts([400, 601], 2, over_http=True)
    assert seen.violations == {"http": "over HTTP, 2 accounts have 1001, but 2 always have 1000"}


@pytest.mark.parametrize(("outcome", "rules"), [("committed", {"exact"}), ("unknown", set()), ("rolled back", set())])
def test_a_shape_lacks_what_was_committed(outcome: Outcome, rules: set[Rule]) -> None:
    """A commit whose answer was lost may have failed."""
    seen = history(outcome)
    seen.end()
    assert {*seen.violations} == rules


def test_transactions_may_begin_while_they_are_counted() -> None:
    """Progress is reported without the lock, while sessions write."""
    seen = history()

    class Beginning(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            seen.transactions[len(seen.transactions) + 1] = ClientTransaction({})
            return str.__eq__(self, other)

    seen.transactions[2].outcome = cast("Outcome", Beginning("committed"))
    assert (seen.committed, len(seen.transactions)) == (2, 3)


def test_the_first_fact_against_a_rule_stays() -> None:
    seen = history()
    seen.violate("live", "first")
    seen.violate("live", "second")
    assert seen.violations == {"live": "first"}


def test_programs_accept_the_files_that_a_trial_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything that the trial's own file may have; its secrets are in the environment alone."""
    file = write_config(tmp_path / "flushtracker.yaml", SETTINGS)
    monkeypatch.setenv("TRIAL_PASSWORD", "secret0")
    setup = create_setup(file, "flushtracker_trial_1", tmp_path, flush="hold", write_unit="txn")
    for name, value in setup.env.items():
        monkeypatch.setenv(name, value)
    capture = load_capture_config(setup.files["capture"])
    tracker = load_config(setup.files["tracker"])
    writers = load_write_config(setup.files["writers"])
    assert (capture.postgres.slot, capture.postgres.publication) == ("flushtracker_trial_1",) * 2
    assert "secret0" in capture.postgres.connection.values()
    assert capture.kafka.options["sasl.password"] == "secret1"
    assert capture.acks == tracker.sink.acks == setup.acks == "s3://bucket/trials/conformance/flushtracker_trial_1/acks"
    assert "secret3" in capture.storage_options.values()
    assert tracker.spark.storage.s3.path_style is True
    assert tracker.spark.settings["spark.executor.memory"] == "2g"
    assert (writers.flush, writers.write_unit, writers.sink.log) == ("hold", "txn", setup.log)
    servers = {part: load_serve_config(setup.files[part]) for part in SERVERS}
    assert {server.sink.log for server in servers.values()} == {setup.log}
    assert {part: server.http.listen_port for part, server in servers.items()} == setup.ports
    tail = servers["tail_server"].tail
    assert tail is not None
    assert (tail.shape_changes, tail.options["sasl.password"]) == ("flushtracker_trial_1.shape_changes", "secret1")
    assert servers["plain_server"].tail is None
    assert all("secret" not in path.read_text().replace("secret_access_key", "") for path in setup.files.values())


def test_shapes_of_a_trial_are_shapes_with_the_conditions_of_its_history(tmp_path: Path) -> None:
    """What the history takes a shape of the ledger to have is what its ``where`` says."""
    (tmp_path / "shapes.yaml").write_text(json.dumps({"shapes": shape_definitions("s")}))
    found = {definition.id: definition for definition in load_shapes(tmp_path / "shapes.yaml")}
    assert {name: found[name].where for name in LEDGER_SHAPES} == {
        "ledger": None,
        "ledger-1": "bucket = 1",
        "ledger-23": "bucket IN (2, 3)",
    }
    had = {name: [bucket for bucket in range(4) if has(bucket)] for name, has in LEDGER_SHAPES.items()}
    assert had == {"ledger": [0, 1, 2, 3], "ledger-1": [1], "ledger-23": [2, 3]}
