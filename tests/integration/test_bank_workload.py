"""The workload of a loop's trial on a real server: its history is what the tables have."""

from collections import defaultdict
from threading import Lock

from flushtracker.local.postgres import LocalPostgres
from flushtracker.trials.loop_trial.bank_workload import ACCOUNTS, LEDGER_SHAPES, TOTAL, Workload, create_tables
from flushtracker.trials.loop_trial.history import History
from flushtracker.wal.lsn import parse_lsn
from tests.support.waiting import wait_until

_TRANSACTIONS = 60


def test_history_of_a_workload_is_what_its_tables_have(postgres: LocalPostgres) -> None:
    """The rows of each transaction, by shape; nothing of one that was rolled back; the sum of the accounts."""
    history, lock = History(TOTAL, 0), Lock()
    create_tables(postgres.connect(), "trial")
    with Workload(postgres.options, "trial", history, lock, seed=4) as workload:
        wait_until(lambda: history.committed >= _TRANSACTIONS, "the transactions", 120)
    assert workload.failure is None
    ((end,),) = postgres.execute("SELECT pg_current_wal_insert_lsn()::text")
    found: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for number, part, bucket in postgres.execute("SELECT txn, part, bucket FROM trial.ledger"):
        for shape_id, has in LEDGER_SHAPES.items():
            if has(bucket):
                found[shape_id][number].add(part)
    for number, each in history.transactions.items():
        for shape_id in LEDGER_SHAPES:
            expected = each.parts[shape_id] if each.outcome == "committed" else frozenset()
            assert found[shape_id].get(number, set()) == expected, (number, shape_id, each)
        assert (each.end_lsn is not None) == (each.outcome == "committed")
        assert each.end_lsn is None or each.end_lsn <= parse_lsn(end)
    outcomes = {each.outcome for each in history.transactions.values()}
    assert outcomes == {"committed", "rolled back"}
    balances = [balance for (balance,) in postgres.execute("SELECT balance FROM trial.accounts")]
    assert (len(balances), sum(balances)) == (ACCOUNTS, TOTAL)
    ends = [each.end_lsn for each in history.transactions.values() if each.end_lsn is not None]
    assert len({*ends}) > _TRANSACTIONS / 2
