"""``Finding``: something that is wrong, for the command, the page and the log; with the thresholds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Part: TypeAlias = Literal["postgres", "capture", "job", "acks", "others", "limits", "upgrade"]
"""The subject of a finding."""

WRONG: Final = 1
"""The exit code for something that an operator must act on."""
RECORDS_BEHIND: Final = 10_000
"""A job that keeps up is less far behind."""
BATCH_MS: Final = 120_000
"""A normal batch takes less time."""

_SEE: Final = "what-you-see-and-what-to-do"
_SECTIONS: Final[Mapping[str, str]] = {
    "slot_lost": "flushtrackerslotlost",
    "slot_unreserved": "flushtrackerslotunreserved",
    "slot_inactive": "flushtrackercapturedisconnected",
    "source_set_aside": "flushtrackergap",
    **dict.fromkeys(("batch_long", "job_behind", "transaction_open"), _SEE),
    **dict.fromkeys(("restart_lsn_held", "nothing_to_confirm"), "the-disk-is-filling"),
    "shapes_held": "flushtrackerackstuck",
    "shapes_ended": "flushtrackershapeended",
    "shapes_evicted": "flushtrackershapeevicted",
    "shapes_refused": "flushtrackershapesrefused",
    "shapes_waiting": "flushtrackershapeswaiting",
    "serve_not_ready": "flushtrackerservebehind",
    "serve_errors": "flushtrackerserveerrors",
    **dict.fromkeys(("writers_not_ready", "writers_batch_long", "writers_behind"), "flushtrackerwriterstuck"),
    "writers_gap": "flushtrackershapegap",
    "upkeep_failing": "flushtrackerupkeepfailing",
    "snapshots_stuck": "flushtrackersnapshotstuck",
    **dict.fromkeys(("snapshots_blocked", "snapshots_failing"), "flushtrackersnapshotfailing"),
}
_UNSOUND: Final = frozenset(
    [
        *("postgres_silent", "slot_missing", "slot_lost", "slot_inactive"),
        *("job_not_ready", "batch_long", "job_behind", "transaction_open", "source_set_aside"),
    ]
)


@dataclass(frozen=True, slots=True)
class Finding:
    """``kind`` is for programs, ``text`` for people; ``remedy`` is empty if there is none.

    The text does not begin with a name, because the page capitalises it. ``exit_code`` is that of ``flushtracker
    status``, 0 if it only explains a figure. ``holds_shapes``: it may be why shapes are pending, whichever they are.
    ``is_failure``: it does not pass by itself.
    """

    part: Part
    kind: str
    text: str
    remedy: str = ""
    exit_code: int = 0
    holds_shapes: bool = False
    is_failure: bool = False

    @property
    def section(self) -> str | None:
        return _SECTIONS.get(self.kind)

    def to_json(self) -> dict[str, str | bool | None]:
        """The finding as JSON for the page."""
        return {
            "kind": self.kind,
            "text": self.text,
            "remedy": self.remedy or None,
            "section": self.section,
            "holds_shapes": self.holds_shapes,
            "is_failure": self.is_failure,
        }


def are_holders_true(findings: Iterable[Finding]) -> bool:
    """Whether capture runs and the job's answer is current, given all findings, so that pending shapes are really not
    flushed.

    Otherwise they may have been flushed, or will be once the findings are resolved.
    """
    return not any(each.kind in _UNSOUND for each in findings)
