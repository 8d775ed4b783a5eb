"""The documents of running programs: what is written is what is read."""

from msgspec.structs import replace

from flushtracker.status.capture_status import CaptureStatus, EndedShape, Eviction, SlotStatus, WaitingShapes
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus
from tests.support.sample_status import read_back


def test_job_status_is_read_as_it_was_written() -> None:
    held = Holder("orders-open", 1_000, 3, 137, 0x37F1C5E)
    gone = Holder("users", 2_000, 1, 40, 0x37F1C5E, 0x37F1CE7)
    source = SourceStatus("7301/1/shapes", 0x37F1C5E, 0x37F1CE7, 2, 1, 1_000, (held, gone))
    new = SourceStatus("7301/2/shapes", None, None, 0, 0, None, ())
    old = SourceStatus("7301/1/shapes/1", None, None, 1, 0, None, (), retired_by="7301/2/shapes")
    status = JobStatus(9_000, 500, is_ready=True, sources=(source, new, old), batch_id=4, batch_at_ms=8_000, batches=5)
    assert read_back(status) == status
    assert read_back(JobStatus(1, 1, is_ready=False)) == JobStatus(1, 1, is_ready=False)


def test_unacknowledged_bytes_are_from_the_ack_to_the_last_commit_seen() -> None:
    assert SourceStatus("s", 0x100, 0x180, 1, 0, 1, ()).unacknowledged_bytes == 0x80
    assert SourceStatus("s", None, None, 0, 0, None, ()).unacknowledged_bytes == 0
    assert SourceStatus("s", 0x180, 0x100, 0, 0, None, ()).unacknowledged_bytes == 0


def test_capture_status_is_read_as_it_was_written() -> None:
    slot = SlotStatus(
        "shapes",
        8_000,
        is_active=True,
        wal_status="reserved",
        written_lsn=0x200,
        confirmed_lsn=0x100,
        retained_bytes=256,
        safe_wal_bytes=None,
    )
    eviction = Eviction("orders-open", 7_000, "held 50 GB")
    status = CaptureStatus(
        *(9_000, 500, "7301/1/shapes"),
        is_connected=True,
        slot=slot,
        received_lsn=0x200,
        evicted=1,
        evictions=(eviction,),
    )
    assert read_back(status) == status
    for lacks in ((), ("its standby", "its copy")):
        prepared = replace(status, slot=replace(slot, failover_lacks=lacks))
        assert read_back(prepared) == prepared
    unpublished = WaitingShapes("public.orders", ("a", "b"), 12, "not the owner", "ALTER PUBLICATION …")
    delayed = WaitingShapes("public.users", ("c",), 1, "it waits for the end of transaction 7", None)
    waiting = replace(status, waiting=(unpublished, delayed))
    assert read_back(waiting) == waiting
    ended = replace(status, ended=(EndedShape("gone", 2, 0x300, "its table was dropped"),))
    assert read_back(ended) == ended
    first = CaptureStatus(1, 1, None, is_connected=False)
    assert read_back(first) == first
