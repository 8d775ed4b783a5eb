"""An overview as a JSON object; docs/schemas/status_command.json describes it."""

from collections.abc import Mapping
from typing import Any

from flushtracker.operate.status.overview import Overview, acked_at_ms
from flushtracker.operate.status.timed_call import CallResult
from flushtracker.operate.status.verdict import Verdict
from flushtracker.status.document import lsn_to_json
from flushtracker.tracking.acks.ack_reader import Ack


def overview_json(overview: Overview, verdict: Verdict) -> dict[str, Any]:
    """The object. Each part has the time of its answer, and either the answer or an ``error``."""
    slot, job, acks, capture = overview.slot.value, overview.job, overview.last_row, overview.capture
    return {
        "version": 1,
        "at_ms": overview.at_ms,
        "source": overview.source,
        "postgres": _part(overview.slot, {"slot": None if slot is None else slot.to_json()}),
        "job": None
        if job is None
        else _part(job, {"url": overview.job_url, "status": None if job.value is None else job.value.to_json()}),
        "capture": None
        if capture is None
        else _part(capture, {"status": None if capture.value is None else capture.value.to_json()}),
        "acks": _part(overview.acks, {"table": overview.acks_table, "last": None if acks is None else _ack(acks)}),
        "others": [
            _part(answer, {"url": url, "status": None if answer.value is None else answer.value.to_json()})
            for url, answer in overview.others
        ],
        "upgrade": None if overview.upgrade is None else overview.upgrade.to_json(),
        "verdict": {
            "exit_code": verdict.exit_code,
            "waiting_ms": overview.waiting_ms,
            "findings": [
                {"kind": each.kind, "text": each.text, "remedy": each.remedy or None, "exit_code": each.exit_code}
                for each in verdict.findings
            ],
        },
    }


def _part(answer: CallResult[Any], found: Mapping[str, Any]) -> dict[str, Any]:
    return {"at_ms": answer.at_ms, "error": None if answer.error is None else str(answer.error), **found}


def _ack(row: Ack) -> dict[str, Any]:
    return {
        "at_ms": acked_at_ms(row),
        "ack_lsn": lsn_to_json(row.ack_lsn),
        "last_seen_lsn": lsn_to_json(row.last_seen_lsn),
        "pending_shapes": row.pending_shapes,
        "blocking_shape_then": row.blocking_shape,
    }
