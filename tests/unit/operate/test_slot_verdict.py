"""What is wrong with a slot, by who said what: problems, limits, and which exit code comes first."""

from dataclasses import replace
from itertools import product

import pytest
from msgspec import structs

from flushtracker.operate.status.overview import Overview, source_of
from flushtracker.operate.status.verdict import Limits, judge
from flushtracker.status.job_status import OpenTransaction
from tests.support.slot_overviews import NO_JOB, NO_SERVER, NO_TABLE, ROW, SLOT, at, overview, slot, source
from tests.support.status_pages import ACK, HELD, IDLE, NOW_MS, SEEN, job_status

NO_LIMITS = Limits()
OPEN = OpenTransaction("flushes", 2, 17, 40, NOW_MS - 90_000, "etl (transaction.timeout.ms 60000)")


def kinds(overview: Overview, limits: Limits = NO_LIMITS) -> list[str]:
    return [problem.kind for problem in judge(overview, limits).findings]


def exit_code(overview: Overview, limits: Limits = NO_LIMITS) -> int:
    return judge(overview, limits).exit_code


def test_shape_that_holds_the_ack_is_no_failure_without_a_limit() -> None:
    """Something is always pending while the server writes."""
    assert kinds(overview()) == []
    assert exit_code(overview()) == 0


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"slot": NO_SERVER}, "postgres_silent", 7),
        ({"slot": None}, "slot_missing", 7),
        ({"slot": slot(wal_status="lost", is_active=False, safe_wal_bytes=None, retained_bytes=0)}, "slot_lost", 1),
        ({"slot": slot(wal_status="unreserved")}, "slot_unreserved", 1),
        ({"slot": slot(is_active=False)}, "slot_inactive", 1),
        ({"job": NO_JOB}, "job_silent", 8),
        ({"job": None}, "job_not_asked", 0),
        ({"job": structs.replace(job_status(), is_ready=False)}, "job_not_ready", 8),
        ({"job": job_status(source(source="7301/1/other"))}, "job_unaware", 8),
        ({"job": job_status(HELD, records_behind=10_000)}, "job_behind", 0),
        ({"job": job_status(HELD, open_transactions=(OPEN,))}, "transaction_open", 0),
        ({"job": job_status(structs.replace(HELD, gap="no 0/4B0"))}, "source_set_aside", 1),
        ({"row": NO_TABLE}, "acks_unreadable", 5),
    ],
)
def test_each_problem_has_its_name_and_its_exit_code(change: dict[str, object], kind: str, code: int) -> None:
    """And one line of text; nothing else is reported with it."""
    seen = overview(**change)  # type: ignore[arg-type]  # of the table above
    (problem,) = judge(seen, NO_LIMITS).findings
    assert (problem.kind, exit_code(seen)) == (kind, code)
    assert problem.text.isprintable()
    if kind not in {"postgres_silent", "acks_unreadable"}:  # these say in the text what to do
        assert problem.remedy


def test_of_several_problems_the_first_code_counts() -> None:
    """What is known to be wrong, then PostgreSQL, the job, and the ack table."""
    codes = {"slot": (NO_SERVER, 7), "job": (NO_JOB, 8), "row": (NO_TABLE, 5)}
    for silent in product([False, True], repeat=3):
        chosen = {name: error for (name, (error, _)), is_silent in zip(codes.items(), silent, strict=True) if is_silent}
        expected = next((code for name, (_, code) in codes.items() if name in chosen), 0)
        assert exit_code(overview(**chosen)) == expected  # type: ignore[arg-type]  # as above
    wrong = overview(slot=slot(wal_status="lost"), job=NO_JOB, row=NO_TABLE)
    assert exit_code(wrong) == 1


@pytest.mark.parametrize(("limit", "code"), [(20_799_999, 1), (20_800_000, 0)])
def test_retained_wal_above_its_limit_is_a_failure(limit: int, code: int) -> None:
    """Exactly the limit is allowed. The job need not answer for that."""
    for job in (HELD, NO_JOB):
        limits = Limits(retained_bytes=limit)
        assert ("max_retained" in kinds(overview(job=job), limits)) == bool(code)
    assert exit_code(overview(), limits) == code


@pytest.mark.parametrize(("limit", "code"), [(155_999, 1), (156_000, 0)])
def test_ack_that_has_waited_longer_than_its_limit_is_a_failure(limit: int, code: int) -> None:
    """By the job's word, at the time of the look."""
    assert exit_code(overview(), Limits(age_ms=limit)) == code


def test_age_of_the_ack_is_known_from_the_table_where_the_job_is_silent() -> None:
    """While no newer row is there, what was pending with the last one still is."""
    limits = Limits(age_ms=155_000)
    assert kinds(overview(job=NO_JOB), limits) == ["job_silent", "max_age"]
    assert exit_code(overview(job=NO_JOB), limits) == 1


def test_old_ack_with_nothing_pending_is_not_late() -> None:
    """Nobody writes: there is nothing to acknowledge. The job's word counts for more than the table's."""
    long_ago = replace(ROW, acked_at=at(NOW_MS - 86_400_000))
    done = replace(long_ago, pending_shapes=0, blocking_shape=None, last_seen_lsn=ACK)
    limits = Limits(age_ms=1)
    assert kinds(overview(job=IDLE, row=long_ago), limits) == []
    assert kinds(overview(job=NO_JOB, row=done), limits) == ["job_silent"]


def test_stale_row_names_no_shape_that_holds_the_ack_now() -> None:
    """The story of the stale answer: the row names users-eu, which is done since; the job names orders-open."""
    assert ROW.blocking_shape == "users-eu"
    for seen in (overview(), overview(job=NO_JOB)):
        assert not any("users-eu" in f"{each.text} {each.remedy}" for each in judge(seen, Limits(1, 1)).findings)


def test_ack_that_capture_does_not_confirm_is_told() -> None:
    """It cannot read the ack table; but it may take a moment, and must be connected."""
    stuck = slot(confirmed_lsn=ACK)
    assert kinds(overview(slot=stuck)) == ["ack_not_confirmed"]
    assert kinds(overview(slot=slot(confirmed_lsn=ACK + 1))) == []
    assert kinds(overview(slot=stuck, row=replace(ROW, acked_at=at(NOW_MS - 59_000)))) == []
    assert kinds(overview(slot=structs.replace(stuck, is_active=False))) == ["slot_inactive"]


def test_much_wal_that_no_shape_holds_has_a_cause() -> None:
    """Either the slot's restart_lsn lags behind what is confirmed, or nothing comes that could be confirmed."""
    large = 5_000_000_000
    held = slot(retained_bytes=large)
    assert kinds(overview(slot=held, job=IDLE)) == ["restart_lsn_held"]
    idle = slot(retained_bytes=large, written_lsn=SEEN + large, confirmed_lsn=SEEN + 1)
    assert kinds(overview(slot=idle, job=IDLE)) == ["nothing_to_confirm"]
    assert kinds(overview(slot=held, job=HELD)) == []
    assert kinds(overview(slot=SLOT, job=IDLE)) == []
    assert kinds(overview(slot=SLOT, job=IDLE), Limits(retained_bytes=1)) == ["max_retained", "restart_lsn_held"]


@pytest.mark.parametrize(("behind", "age_ms", "told"), [(1, 121_000, ["job_behind"]), (1, 119_000, []), (0, 9**9, [])])
def test_job_that_has_something_to_read_and_ends_no_batch_is_told(behind: int, age_ms: int, told: list[str]) -> None:
    """It hangs; one that has nothing to read has no batch for long."""
    seen = overview(job=job_status(HELD, records_behind=behind, batch_at_ms=NOW_MS - age_ms))
    assert kinds(seen) == told
    assert all(each.text.endswith("; its last batch ended 2.0 min ago") for each in judge(seen, NO_LIMITS).findings)


@pytest.mark.parametrize(
    ("running_ms", "max_age_ms", "told"),
    [
        (7_200_000, None, {"batch_long": 8}),
        (120_001, None, {"batch_long": 8}),
        (120_000, None, {}),
        (7_200_000, 600_000, {"batch_long": 8}),
        (300_000, 600_000, {"batch_long": 0}),
        (31_000, 30_000, {"batch_long": 8}),
        (30_000, 30_000, {}),
    ],
)
def test_job_that_hangs_in_a_batch_is_not_well(running_ms: int, max_age_ms: int | None, told: dict[str, int]) -> None:
    """All that it saw before was flushed, so it says that nothing is pending; meanwhile the slot retains more and more.

    That no shape holds the slot is not known then, so it is not said either.
    """
    job = job_status(IDLE, records_behind=0, batch_running_since_ms=NOW_MS - running_ms)
    retained = 800_000_000 if told else SLOT.retained_bytes
    seen = overview(slot=slot(retained_bytes=retained, written_lsn=SEEN + retained, confirmed_lsn=SEEN + 1), job=job)
    verdict = judge(seen, Limits(age_ms=max_age_ms))
    assert {problem.kind: problem.exit_code for problem in verdict.findings} == told
    assert verdict.exit_code == max(told.values(), default=0)
    larger = replace(seen, slot=overview(slot=slot(retained_bytes=5 * 10**9, confirmed_lsn=SEEN + 1)).slot)
    assert (kinds(larger, Limits(age_ms=max_age_ms)) == ["batch_long"]) == bool(told)


def test_age_is_by_the_clock_of_the_job() -> None:
    """Its machine is an hour ahead of this one, or behind."""
    for ahead_ms in (3_600_000, -3_600_000):
        at_ms = NOW_MS + ahead_ms
        assert overview(job=job_status(source(waiting_since_ms=at_ms - 10_000), at_ms=at_ms)).waiting_ms == 10_000


@pytest.mark.parametrize(
    ("system", "names", "chosen"),
    [
        ("7301", [], None),
        ("7301", ["7301/1/shapes"], "7301/1/shapes"),
        ("7301", ["7301/1/shapes-eu", "7302/1/shapes", "shapes", "7301/shapes", "7301/1/shapes/x"], None),
        ("7301", ["7301/1/shapes", "7301/1/shapes/2", "7301/1/shapes/10"], "7301/1/shapes/10"),
        ("7301", ["7301/9/shapes/5", "7301/10/shapes"], "7301/10/shapes"),
        (None, ["7301/1/shapes", "7301/2/shapes", "7301/1/other"], "7301/2/shapes"),
        (None, ["7301/1/shapes", "7302/1/shapes"], None),
        ("7302", ["7301/1/shapes", "7302/1/shapes"], "7302/1/shapes"),
        (None, ["recording/1/shapes"], "recording/1/shapes"),
        (None, ["recording/first/shapes"], None),
    ],
)
def test_source_is_the_slots_on_this_server_in_its_last_epoch(
    system: str | None, names: list[str], chosen: str | None
) -> None:
    """After a failover the timeline is greater; another server's slot of the same name is never taken for it."""
    for order in (names, names[::-1]):
        assert source_of("shapes", system, order) == chosen
