"""``Finding``: something that is wrong, for the command, the page and the log; with the thresholds."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, TypeAlias

from flushtracker.status.document import StatusObject, about

Part: TypeAlias = Literal["postgres", "capture", "job", "acks", "others", "limits", "upgrade"]
"""The subject of a finding."""

_SlotKind = Literal["postgres_silent", "slot_missing", "slot_lost", "slot_unreserved", "slot_inactive"]
_CaptureKind = Literal["capture_silent", "shapes_ended", "shapes_evicted", "shapes_refused", "shapes_waiting"]
_JobKind = Literal["job_not_asked", "job_silent", "job_not_ready", "job_unaware", "job_behind", "batch_long"]
_AckKind = Literal["transaction_open", "source_set_aside", "acks_unreadable", "ack_not_confirmed", "shapes_held"]
_WriterKind = Literal["writers_not_ready", "writers_batch_long", "writers_behind", "writers_gap", "upkeep_failing"]
_SnapshotKind = Literal["snapshots_blocked", "snapshots_stuck", "snapshots_failing", "snapshots_not_taken"]
_OtherKind = Literal["program_silent", "serve_not_ready", "serve_errors", "serve_tail"]
_SinkKind = Literal["sink_waits", "sink_lost"]
_LimitKind = Literal["max_retained", "max_age", "restart_lsn_held", "nothing_to_confirm"]
_UpgradeKind = Literal[
    "upgrade_on_standby",
    "upgrade_keeps_no_slots",
    "upgrade_has_writers",
    "upgrade_unconfirmed",
    "upgrade_other_slots",
    "upgrade_no_free_slot",
    "upgrade_not_sealed",
]
Kind: TypeAlias = Literal[
    _SlotKind,
    _CaptureKind,
    _JobKind,
    _AckKind,
    _WriterKind,
    _SnapshotKind,
    _OtherKind,
    _SinkKind,
    _LimitKind,
    _UpgradeKind,
]
"""What is wrong, for programs; ``shapes_held`` is only on the page."""

WRONG: Final = 1
"""The exit code for something that an operator must act on."""
RECORDS_BEHIND: Final = 10_000
"""A job that keeps up is less far behind."""
BATCH_MS: Final = 120_000
"""A normal batch takes less time."""

_SEE: Final = "what-you-see-and-what-to-do"
_SECTIONS: Final[Mapping[Kind, str]] = {
    "slot_lost": "flushtrackerslotlost",
    "slot_unreserved": "flushtrackerslotunreserved",
    "slot_inactive": "flushtrackercapturedisconnected",
    "source_set_aside": "flushtrackergap",
    **dict.fromkeys(("batch_long", "job_behind", "transaction_open"), _SEE),
    **dict.fromkeys(("restart_lsn_held", "nothing_to_confirm"), "the-disk-is-filling"),
    **dict.fromkeys(("shapes_held", "sink_waits", "sink_lost"), "flushtrackerackstuck"),
    "shapes_ended": "flushtrackershapeended",
    "shapes_evicted": "flushtrackershapeevicted",
    "shapes_refused": "flushtrackershapesrefused",
    "shapes_waiting": "flushtrackershapeswaiting",
    "serve_not_ready": "flushtrackerservebehind",
    "serve_errors": "flushtrackerserveerrors",
    "serve_tail": "flushtrackerservetailunread",
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


class Finding(StatusObject, frozen=True):
    """Something that is wrong, or explains a figure; docs/operating.md lists the kinds."""

    part: Annotated[Part, about("what it is about")]
    kind: Annotated[Kind, about("what it is, for programs")]
    # It does not begin with a name, because the page capitalises it.
    text: Annotated[str, about("what it is, for people")]
    remedy: Annotated[str, about("what to do; empty if there is nothing")] = ""
    exit_code: Annotated[
        int, about("the command's exit code for it; 0 if it explains a figure, and is no failure by itself")
    ] = 0
    holds_shapes: Annotated[bool, about("whether it may be why shapes are pending, whichever they are")] = False
    is_failure: Annotated[bool, about("whether it does not pass by itself")] = False

    @property
    def section(self) -> Annotated[str | None, about("the section of the runbook, if it has one")]:
        return _SECTIONS.get(self.kind)


def are_holders_true(findings: Iterable[Finding]) -> bool:
    """Whether capture runs and the job's answer is current, given all findings, so that pending shapes are really not
    flushed.

    Otherwise they may have been flushed, or will be once the findings are resolved.
    """
    return not any(each.kind in _UNSOUND for each in findings)
