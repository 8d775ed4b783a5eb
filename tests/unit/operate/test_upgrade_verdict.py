"""Whether pg_upgrade would keep the slot, by what the server says; and what is to be done before."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from flushtracker.operate.status.overview import Overview
from flushtracker.operate.status.overview_text import overview_lines
from flushtracker.operate.status.verdict import Limits, judge
from flushtracker.status.upgrade_facts import UpgradeFacts
from tests.support.slot_overviews import FACTS, NO_JOB, NO_SERVER, NO_TABLE, overview, slot
from tests.support.status_pages import ACK, IDLE


def seen(facts: UpgradeFacts | None = FACTS, **parts: Any) -> Overview:
    return replace(overview(**parts), is_for_upgrade=True, upgrade=facts)


def verdict(found: Overview) -> tuple[int, list[str]]:
    """The exit code, and the kinds of what is wrong."""
    judged = judge(found, Limits())
    return judged.exit_code, [problem.kind for problem in judged.findings if problem.exit_code]


def test_it_is_safe_once_all_is_confirmed_and_nothing_is_open() -> None:
    """Whoever does not answer any more, and whether or not capture is still connected."""
    for parts in ({"job": IDLE}, {"job": NO_JOB, "row": NO_TABLE}, {"job": None, "slot": slot(is_active=False)}):
        found = seen(**parts)
        assert verdict(found) == (0, [])

        assert any(line.startswith("safe to upgrade: ") for line in overview_lines(found, judge(found, Limits())))


def test_a_sealed_slot_is_safe_whatever_the_server_writes_by_itself() -> None:
    """As at its checkpoints, which pg_upgrade accepts. A capture that is started would drop the seal."""
    found = seen(structs.replace(FACTS, written_lsn=ACK + 500, free_slots=0), job=NO_JOB, slot=slot(is_active=False))
    assert verdict(found) == (0, [])
    lines = overview_lines(found, judge(found, Limits()))
    assert any(
        "sealed at 0/" in line and "stop the server now" in line and "499 B written since" in line for line in lines
    )
    assert not any("start" in line and "capture" in line for line in lines)


@pytest.mark.parametrize(
    ("facts", "kind", "code"),
    [
        (structs.replace(FACTS, open_transactions=1), "upgrade_has_writers", 1),
        (structs.replace(FACTS, prepared_transactions=1), "upgrade_has_writers", 1),
        (structs.replace(FACTS, other_slots=("audit",)), "upgrade_other_slots", 1),
        (structs.replace(FACTS, sealed_lsn=None), "upgrade_not_sealed", 1),
        (structs.replace(FACTS, version=16), "upgrade_keeps_no_slots", 1),
        (structs.replace(FACTS, is_standby=True, written_lsn=None), "upgrade_on_standby", 7),
    ],
)
def test_each_reason_not_to_upgrade_has_its_name(facts: UpgradeFacts, kind: str, code: int) -> None:
    """And says what to do."""
    found = seen(facts, job=IDLE)
    assert verdict(found) == (code, [kind])
    lines = overview_lines(found, judge(found, Limits()))
    assert lines[-1].startswith("remedy: ")
    assert not any("safe to upgrade" in line for line in lines)


def test_what_is_to_be_done_is_in_order() -> None:
    """First nobody must write any more; only then can all be confirmed. One byte may be a commit."""
    facts = structs.replace(FACTS, written_lsn=ACK + 2, open_transactions=2, other_slots=("audit",), sealed_lsn=None)
    kinds = ["upgrade_has_writers", "upgrade_unconfirmed", "upgrade_other_slots", "upgrade_not_sealed"]
    assert verdict(seen(facts, job=IDLE)) == (1, kinds)
    facts = structs.replace(FACTS, free_slots=0, sealed_lsn=None)
    assert verdict(seen(facts, job=IDLE)) == (1, ["upgrade_no_free_slot", "upgrade_not_sealed"])


def test_a_slot_that_cannot_be_looked_at_is_not_safe() -> None:
    """A server that is silent, one without the slot, and a slot that is lost."""
    assert verdict(seen(None, slot=NO_SERVER)) == (7, ["postgres_silent"])
    assert verdict(seen(slot=None)) == (7, ["slot_missing"])
    assert verdict(seen(slot=slot(wal_status="lost", confirmed_lsn=None)))[0] == 1
