"""``CheckpointFolder``: a checkpoint with all its batches, planned and committed."""

from dataclasses import dataclass, field

from flushtracker.spark.recovery_plan import RecoveryPlan
from tests.support.simulated_job import Checkpoint


@dataclass(slots=True)
class CheckpointFolder:
    """Where its batches begin and end in the streams, and the state after each committed one."""

    first: tuple[int, ...]
    starts: RecoveryPlan = field(default_factory=RecoveryPlan)
    plans: dict[int, tuple[int, ...]] = field(default_factory=dict)
    commits: list[Checkpoint] = field(default_factory=lambda: [Checkpoint()])

    @property
    def last(self) -> Checkpoint:
        return self.commits[-1]

    def begin_of(self, batch_id: int) -> tuple[int, ...]:
        return self.plans[batch_id - 1] if batch_id else self.first

    def restored(self, commit: int) -> "CheckpointFolder":
        """A copy that was made after a commit: later batches are planned anew."""
        commits = self.commits[: commit + 1]
        plans = {batch_id: ends for batch_id, ends in self.plans.items() if batch_id <= commits[-1].batch_id}
        return CheckpointFolder(self.first, self.starts, plans, commits)
