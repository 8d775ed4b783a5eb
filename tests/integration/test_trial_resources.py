"""What a loop's trial creates on a real server, and that it leaves nothing behind and touches nothing else."""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from flushtracker.errors import BrokerError, ConfigError, PostgresError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.trials.loop_trial import trial_resources
from flushtracker.trials.loop_trial.trial_resources import TrialResources
from flushtracker.trials.loop_trial.trial_setup import TrialSetup, create_setup
from flushtracker.wal.lsn import parse_lsn
from tests.support.config_file import write_config

_NAME = "flushtracker_trial_1"
_THERE = """
SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname LIKE 'flush%'
UNION ALL SELECT 'publication ' || pubname || ' ' || string_agg(tablename, ' ' ORDER BY tablename)
FROM pg_publication LEFT JOIN pg_publication_tables USING (pubname) GROUP BY pubname
UNION ALL SELECT 'slot ' || slot_name FROM pg_replication_slots
"""


class FakeAdmin:
    """In place of the brokers; ``done`` has what was asked of them, and ``error`` is raised instead."""

    def __init__(self, error: BrokerError | None = None) -> None:
        self.done = list[str]()
        self._error = error

    def __call__(self, _: object) -> "FakeAdmin":
        return self

    def create(self, roles: Iterable[str]) -> None:
        if self._error is not None:
            raise self._error
        self.done.append(f"create {len([*roles])}")

    def delete(self, roles: Iterable[str]) -> None:
        self.done.append(f"delete {len([*roles])}")


@pytest.fixture
def setup(postgres: LocalPostgres, tmp_path: Path) -> TrialSetup:
    config = {"postgres": dict(postgres.options), "kafka": "localhost:1", "storage": "x"}
    return create_setup(write_config(tmp_path / "loop.yaml", config), _NAME, tmp_path, flush="batch", write_unit="txn")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeAdmin], FakeAdmin]:
    def use(admin: FakeAdmin) -> FakeAdmin:
        monkeypatch.setattr(trial_resources, "TopicAdmin", admin)
        return admin

    return use


def there(postgres: LocalPostgres) -> list[str]:
    return sorted(text for (text,) in postgres.execute(_THERE))


def test_everything_has_the_trials_name_and_is_removed(
    postgres: LocalPostgres, setup: TrialSetup, fake: Callable[[FakeAdmin], FakeAdmin]
) -> None:
    """Whatever ends the trial."""
    admin = fake(FakeAdmin())
    with suppress(KeyboardInterrupt), TrialResources(setup) as created:
        assert there(postgres) == [
            f"publication {_NAME} accounts items ledger",
            f"schema {_NAME}",
            f"slot {_NAME}",
        ]
        ((lsn,),) = postgres.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
        assert created.first_lsn == parse_lsn(lsn)
        raise KeyboardInterrupt
    assert (there(postgres), admin.done) == ([], ["create 4", "delete 4"])


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        (f"CREATE SCHEMA {_NAME}", "schema"),
        (f"CREATE PUBLICATION {_NAME}", "publication"),
        (f"SELECT pg_create_logical_replication_slot('{_NAME}', 'pgoutput')", "replication slot"),
    ],
)
def test_what_has_the_name_already_is_not_touched(
    postgres: LocalPostgres, setup: TrialSetup, fake: Callable[[FakeAdmin], FakeAdmin], statement: str, what: str
) -> None:
    admin = fake(FakeAdmin())
    postgres.execute(statement)
    before = there(postgres)
    with pytest.raises(ConfigError, match=f"the server has a {what} {_NAME} already"), TrialResources(setup):
        pass
    assert (there(postgres), admin.done) == (before, [])


def test_brokers_that_refuse_the_topics_leave_nothing_on_the_server(
    postgres: LocalPostgres, setup: TrialSetup, fake: Callable[[FakeAdmin], FakeAdmin]
) -> None:
    fake(FakeAdmin(BrokerError("no")))
    with pytest.raises(BrokerError, match="no"), TrialResources(setup):
        pass
    assert there(postgres) == []


def test_what_cannot_be_removed_is_named_and_the_rest_is_removed(
    postgres: LocalPostgres,
    setup: TrialSetup,
    fake: Callable[[FakeAdmin], FakeAdmin],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Here the slot, of which the server says that it is in use."""
    fake(FakeAdmin())

    def refuse(_: TrialResources) -> None:
        raise PostgresError("in use")

    with caplog.at_level(logging.ERROR), TrialResources(setup) as created:
        created._undo = [(what, partial(refuse, created) if "slot" in what else undo) for what, undo in created._undo]
    assert f"left behind what='replication slot {_NAME}' error=in use" in caplog.text
    assert there(postgres) == [f"slot {_NAME}"]
