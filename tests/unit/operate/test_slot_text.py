"""An overview as text: exactly what an operator reads, in each situation."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from flushtracker.operate.status.overview import Overview
from flushtracker.operate.status.overview_text import overview_lines
from flushtracker.operate.status.verdict import Limits, judge
from flushtracker.status.job_status import Holder
from flushtracker.wal.lsn import format_lsn, parse_lsn
from tests.support.slot_overviews import NO_JOB, NO_SERVER, NO_TABLE, URL, overview, slot, source
from tests.support.status_pages import ACK, HELD, HOLDER, IDLE, NOW_MS, SEEN, job_status

ROOT: Final = Path(__file__).parents[3]


def text(overview: Overview, limits: Limits | None = None, *, width: int | None = 80) -> list[str]:
    return overview_lines(overview, judge(overview, limits or Limits()), width=width)


def remedies(lines: list[str]) -> list[str]:
    return [line.removeprefix("remedy: ") for line in lines if line.startswith("remedy: ")]


HELD_SLOT: Final = slot(retained_bytes=SEEN - ACK + 60)
"""A slot of which the first holder holds most."""


def test_readme_shows_what_is_printed() -> None:
    """The lines are of a run of the demo; these facts give the same."""
    (block,) = re.findall(r"^```\n(slot flushtracker .*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    ack, seen, without = parse_lsn("0/2A332EE"), parse_lsn("0/2B78960"), parse_lsn("0/2A8FAAE")
    holders = (
        Holder("audit-archive", NOW_MS - 15_000, 1, 1_330_000, without),
        Holder("orders-eu", NOW_MS - 8_100, 1, 954_000, ack),
    )
    held = source(ack_lsn=ack, last_seen_lsn=seen, pending_shapes=7, holders=holders)
    lines = text(overview(slot=slot(name="flushtracker", retained_bytes=2_850_000, safe_wal_bytes=None), job=held))
    assert lines[:5] == block.splitlines()


def test_shape_that_holds_the_slot_is_named_with_what_it_holds() -> None:
    """Which one, since when, how much, and what could be acknowledged without it."""
    assert text(overview(slot=HELD_SLOT)) == [
        "slot shapes  active  wal_status=reserved  retained 197 B  safe 3.90 GB",
        "ack 0/37F1C5E   last seen 0/37F1CE7   1 pending",
        "SHAPE        SINCE    HOLDS  ACK IF REMOVED",
        "orders-open  2.6 min  137 B  0/37F1CE7",
        "remedy: check its writer (log), or: flushtracker remove-shape orders-open (final: its id is never used again)",
    ]


def test_a_removal_that_frees_little_is_not_offered() -> None:
    """It is final, and would have gained 137 bytes of 20.8 MB."""
    assert remedies(text(overview())) == ["check the writer (log) of orders-open; removing the shape would free little"]
    freed = SEEN - ACK
    for retained, is_offered in ((2 * freed, True), (2 * freed + 1, False)):
        for ack in (ACK, None):
            held = source(ack_lsn=ack)
            (remedy,) = remedies(text(overview(slot=slot(retained_bytes=retained), job=held)))
            assert ("remove-shape" in remedy) == is_offered


def test_with_the_writers_job_frozen_the_writer_is_to_be_started() -> None:
    """All shapes had stopped at the same moment, and the advice was to remove one of them for good, for 17 kB of 14 MB.

    Also while another one became pending later. A shape that stopped alone is another matter.
    """
    ages = [156, 155, 150, 140, 70, 2]
    stopped = [
        Holder(f"s{n}", NOW_MS - age * 1000, 9, 14_000_000 - n * 17_000, ACK + (17_000 if n == 0 else 0))
        for n, age in enumerate(ages)
    ]
    frozen = source(holders=tuple(stopped), pending_shapes=6, last_seen_lsn=ACK + 14_000_000)
    expected = (
        "s0, s1, s2 and 1 more stopped at the same moment, 2.6 min ago, so their writer (log) is down: start it, "
    )
    expected += "or see its log"
    for retained in (100, 20_800_000):
        assert remedies(text(overview(slot=slot(retained_bytes=retained), job=frozen))) == [expected]
    alone = replace(frozen, holders=(stopped[0], *stopped[4:]))
    assert remedies(text(overview(job=alone))) == ["check the writer (log) of s0; removing the shape would free little"]


@pytest.mark.parametrize(
    "seen",
    [
        overview(slot=slot(is_active=False, retained_bytes=100)),
        overview(slot=NO_SERVER),
        overview(slot=slot(wal_status="lost", retained_bytes=100)),
        overview(slot=HELD_SLOT, job=job_status(HELD, batch_running_since_ms=NOW_MS - 3_600_000)),
        overview(slot=HELD_SLOT, job=job_status(HELD, records_behind=50_000)),
        overview(slot=HELD_SLOT, job=NO_JOB),
    ],
    ids=["capture is down", "no server", "lost", "the job hangs", "the job is behind", "no job"],
)
def test_while_capture_or_the_job_is_down_nothing_is_said_of_shapes(seen: Overview) -> None:
    """They may have flushed: the job has not read it, or is not sent it."""
    assert not any("writer" in remedy or "remove-shape" in remedy for remedy in remedies(text(seen)))


def test_a_source_that_the_slots_has_replaced_is_told_to_be_retired() -> None:
    """It is nobody's problem: its shapes have the ids of the present source's, which must not be removed for it."""
    old = replace(HELD, source="7301/0/shapes", pending_shapes=2, retired_by=HELD.source)
    status = job_status(IDLE)
    assert text(overview(job=replace(status, sources=(old, *status.sources)))) == [
        "slot shapes  active  wal_status=reserved  retained 20.8 MB  safe 3.90 GB",
        "ack 0/37F1CE7   last seen 0/37F1CE7   nothing pending",
        "source 7301/0/shapes is retired: 2 shapes of it stayed pending, and nothing waits for them",
    ]


def test_a_source_that_is_set_aside_is_not_said_to_have_nothing_pending() -> None:
    """What its shapes have flushed is not known, and nothing that the slot retains is explained by them."""
    lines = text(overview(job=job_status(replace(IDLE, gap="no 0/4B0")), slot=slot(retained_bytes=9_000_000_000)))
    assert lines[1:3] == [
        "ack 0/37F1CE7   last seen 0/37F1CE7   set aside",
        "the job acknowledges nothing more of this source: no 0/4B0",
    ]
    (remedy,) = remedies(lines)
    assert remedy.endswith("then run flushtracker track once with --recover")


def test_nothing_pending_is_three_facts() -> None:
    """No table, and nothing to do."""
    assert text(overview(job=job_status(IDLE, records_behind=12))) == [
        "slot shapes  active  wal_status=reserved  retained 20.8 MB  safe 3.90 GB",
        "ack 0/37F1CE7   last seen 0/37F1CE7   nothing pending   12 records behind",
    ]


def test_batch_that_hangs_is_told_with_its_age() -> None:
    """Below the figures, which are of the time before it."""
    job = job_status(IDLE, batch_running_since_ms=NOW_MS - 7_200_000)
    lines = text(overview(job=job, slot=slot(retained_bytes=800_000_000)))
    assert lines[1:3] == [
        "ack 0/37F1CE7   last seen 0/37F1CE7   nothing pending",
        "a batch has run for 2.0 h; the job's answer is from before it",
    ]
    (remedy,) = remedies(lines)
    assert remedy.startswith("see the job's log and Spark's page")


def test_slot_is_shown_when_the_job_is_dead_and_the_table_is_dated() -> None:
    """What the table had is not what is; the shape that it names may be done since."""
    assert text(overview(job=NO_JOB)) == [
        "slot shapes  active  wal_status=reserved  retained 20.8 MB  safe 3.90 GB",
        f"job {URL} does not answer (connection refused); below is what the ack table had at 14:10:44Z, 2.6 min ago",
        "ack 0/37F1C5E   at 14:10:44Z: last seen 0/37F1CE7   1 pending",
        "at 14:10:44Z it was held by users-eu, since 14:10:40Z; only the job knows which shape holds it now",
        "remedy: start flushtracker track, or see its log; if it was fenced, another one runs: correct its address",
    ]


def test_each_silence_is_one_line() -> None:
    """With nobody there, three lines say so."""
    assert text(overview(slot=NO_SERVER, job=NO_JOB, row=NO_TABLE)) == [
        str(NO_SERVER),
        str(NO_JOB),
        str(NO_TABLE),
        "remedy: start flushtracker track, or see its log; if it was fenced, another one runs: correct its address",
    ]


def test_unreadable_table_does_not_hide_what_the_job_says() -> None:
    """The job's word is all that is needed; that capture may not read the table either is said."""
    lines = text(overview(slot=NO_SERVER, row=NO_TABLE))
    assert lines[0] == str(NO_SERVER)
    assert lines[1] == "ack 0/37F1C5E   last seen 0/37F1CE7   1 pending"
    assert str(NO_TABLE) in lines


def test_lost_slot_says_what_to_do_first() -> None:
    """No limit is shown: it has no meaning any more."""
    lost = slot(is_active=False, wal_status="lost", safe_wal_bytes=None, retained_bytes=0)
    lines = text(overview(slot=lost))
    assert lines[:2] == [
        "slot shapes  inactive  wal_status=lost  retained 0 B",
        "the slot is lost: the server has removed WAL that was not confirmed",
    ]
    assert any(line.startswith("drop the slot, start capture with --create --new-epoch") for line in remedies(lines))


def test_removing_one_of_two_at_the_same_place_changes_nothing() -> None:
    """The remedy does not suggest what would not help."""
    stuck = [
        replace(HOLDER, shape_id=name, since_ms=HOLDER.since_ms + since, ack_if_removed=ACK, ack_if_all_removed=None)
        for name, since in (("a", 0), ("b", 40_000))
    ]
    lines = text(overview(job=source(holders=tuple(stuck), pending_shapes=2)))
    assert lines[3:5] == ["a      2.6 min  137 B  no change", "b      1.9 min  137 B  no change"]
    assert remedies(lines) == ["check the writer (log) of these shapes; removing only one changes nothing"]


def test_each_remedy_names_the_writers_of_the_shapes() -> None:
    """Three shapes of three writers stopped within 24 s, and were said to be one writer's, which was down."""
    stopped = [
        Holder(f"s{n}", HOLDER.since_ms + n * 12_000, 1, 137, ACK, None, writer)
        for n, writer in enumerate(["own", "log", "third"])
    ]
    held = source(holders=tuple(stopped), pending_shapes=3)
    expected = "check the writers (log, own, third) of these shapes; removing only one changes nothing"
    assert remedies(text(overview(job=held))) == [expected]
    first = replace(stopped[0], ack_if_removed=SEEN)
    held = replace(held, holders=(first, *stopped[1:]))
    assert remedies(text(overview(job=held))) == ["check the writer (own) of s0; removing the shape would free little"]
    held = replace(held, holders=(first, replace(stopped[1], writer="own"), stopped[2]))
    assert remedies(text(overview(job=held))) == [
        "s0, s1 stopped at the same moment, 2.6 min ago, so their writer (own) is down: start it, or see its log"
    ]


@pytest.mark.parametrize(
    ("equals", "which"), [(2, "s0 and s1"), (3, "s0, s1 and s2"), (4, "the first 4"), (9, "the first 9")]
)
def test_remedy_says_which_of_equals_would_have_to_go_together(equals: int, which: str) -> None:
    """The issue's "first k": the ack moves with the last of them. The next shape is at another place."""
    acks = [ACK] * (equals - 1) + [ACK + 64]
    stuck = [Holder(f"s{n}", HOLDER.since_ms - n * 40_000, 1, 137, ACK, ack) for n, ack in enumerate(acks)]
    last = replace(HOLDER, shape_id="z", since_ms=NOW_MS, ack_if_removed=ACK, ack_if_all_removed=SEEN)
    held = source(holders=(*stuck, last), pending_shapes=equals + 1)
    assert remedies(text(overview(job=held))) == [
        "check the writer (log) of these shapes; removing only one changes nothing"
    ]
    lines = text(overview(slot=slot(retained_bytes=128), job=held))
    (remedy,) = remedies(lines)
    assert remedy.startswith("check the writer (log) of these shapes; removing only one changes nothing; ")
    assert remedy.endswith(f"; removing {which} would acknowledge {format_lsn(ACK + 64)}")


def test_shape_at_work_needs_no_remedy() -> None:
    """It is pending for a second, as ever; a job that calls it stalled, or a limit, says otherwise."""
    young = source(waiting_since_ms=NOW_MS - 1_000, holders=(replace(HOLDER, since_ms=NOW_MS - 1_000),))
    assert remedies(text(overview(job=young))) == []
    assert len(remedies(text(overview(job=replace(young, stalled_shapes=1))))) == 1
    assert len(remedies(text(overview(job=young), Limits(retained_bytes=1)))) == 1


@pytest.mark.parametrize(
    "shape_id",
    [
        "it's",
        "a b",
        "$(reboot)",
        "-f",
        "naïve",
        "a;b",
        "eu\ufeff",
        "a\u200bb'c\\d",
        "x\u202ey",
        "a\x9b31m\x1b2\xad\\x9b'\x85b",
        '"',
        "*",
    ],
)
def test_remedy_can_be_pasted_into_a_shell(shape_id: str) -> None:
    """Whatever the id is, bash reads it as it is, and the terminal shows no character that is not seen."""
    lines = text(overview(slot=HELD_SLOT, job=source(holders=(replace(HOLDER, shape_id=shape_id),))))
    assert all(line.isprintable() for line in lines)
    command = remedies(lines)[0].partition("or: ")[2].removesuffix(" (final: its id is never used again)")
    words = command.removeprefix("flushtracker remove-shape ")
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[-2] == shape_id
    assert words.startswith("-- ") == shape_id.startswith("-")


def test_remedy_names_the_configuration_that_is_not_the_default() -> None:
    """So that it acts on the same slot."""
    seen = overview(slot=HELD_SLOT)
    lines = overview_lines(seen, judge(seen, Limits()), config_arguments=("--config", "my conf/eu.yaml"))
    assert f"remove-shape --config {shlex.quote('my conf/eu.yaml')} orders-open (final" in lines[-1]
