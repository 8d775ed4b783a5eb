"""What capture and the job report while a shape holds the slot, as an eviction policy is given it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import structs

from flushtracker.capture.eviction.policy import Decision, EvictionPolicy
from flushtracker.status.capture_status import CaptureStatus, Eviction, SlotStatus
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus

START_MS: Final = 1_700_000_000_000
TICK_MS: Final = 1_000
AFTER_MS: Final = 60_000
MB: Final = 1_000_000
SOURCE: Final = "7/1/shapes"
ACK: Final = 1_000


@dataclass
class World:
    """Capture and the job, healthy, where the shape ``dead`` holds the ack; a test changes what it is about."""

    now_ms: int = START_MS
    written_lsn: int = ACK + 20 * MB
    grows_by: int = MB
    batch_id: int = 1
    batches: int = 1
    evictions: tuple[Eviction, ...] = ()
    holders: tuple[Holder, ...] = (
        Holder("dead", START_MS, 5, 0, ACK),
        Holder("behind-it", START_MS - 3 * AFTER_MS, 5, 0, ACK),
    )
    capture: dict[str, Any] = field(default_factory=dict)
    slot: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    holder: dict[str, Any] = field(default_factory=dict)
    has_job: bool = True
    job_started_at_ms: int = START_MS

    def __post_init__(self) -> None:
        self.batch_at_ms, self.seen_lsn = self.now_ms, self.written_lsn - 1

    def tick(self, ms: int = TICK_MS) -> None:
        """Time passes; ``batches`` of the job end, and have seen everything."""
        self.now_ms += ms
        self.written_lsn += self.grows_by
        self.batch_id += self.batches
        if self.batches:
            self.batch_at_ms, self.seen_lsn = self.now_ms, self.written_lsn - 1

    @property
    def held_bytes(self) -> int:
        return self.written_lsn - ACK

    def capture_status(self) -> CaptureStatus:
        slot = SlotStatus(
            "shapes",
            self.now_ms,
            True,  # noqa: FBT003  a field
            "reserved",
            self.written_lsn,
            ACK + 1,
            self.held_bytes,
            None,
        )
        status = CaptureStatus(
            at_ms=self.now_ms,
            started_at_ms=START_MS,
            source=SOURCE,
            is_connected=True,
            slot=structs.replace(slot, **self.slot),
            received_lsn=self.written_lsn,
            published_lsn=self.written_lsn - 1,
            acknowledged_lsn=ACK,
            confirmed_lsn=ACK + 1,
            evictions=self.evictions,
        )
        return structs.replace(status, **self.capture)

    def job_status(self) -> JobStatus | None:
        if not self.has_job:
            return None
        holders = tuple(
            structs.replace(holder, **{"held_bytes": self.held_bytes, **self.holder}) for holder in self.holders
        )
        source = SourceStatus(SOURCE, ACK, self.seen_lsn, len(holders), 1, START_MS, holders)
        job = JobStatus(
            at_ms=self.now_ms,
            started_at_ms=self.job_started_at_ms,
            is_ready=True,
            sources=(structs.replace(source, **self.source),),
            batch_id=self.batch_id,
            batch_at_ms=self.batch_at_ms,
        )
        return structs.replace(job, **self.job)

    def run(self, ms: int, policy: EvictionPolicy, change: Callable[["World"], None] = lambda _: None) -> Decision:
        """Let time pass, with a look at every tick; the last decision, or the first one to evict."""
        for _ in range(ms // TICK_MS):
            change(self)
            decision = policy.decide(self.now_ms, self.capture_status(), self.job_status())
            if decision.shape_id is not None:
                return decision
            self.tick()
        return decision
