"""An overview as lines of text: the slot, the ack, the shapes that hold it, and what to do."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from flushtracker.config.one_file import DEFAULT_CONFIG
from flushtracker.config.units import bytes_text, seconds_text
from flushtracker.errors import listed, printable
from flushtracker.operate.status.other_programs import other_lines
from flushtracker.operate.status.overview import Overview, milliseconds
from flushtracker.operate.status.verdict import Verdict
from flushtracker.status.capture_status import SlotStatus
from flushtracker.status.finding import Part, are_holders_true
from flushtracker.status.job_status import Holder, SourceStatus
from flushtracker.status.shapes_remedy import shapes_remedy, would_move
from flushtracker.status.stall import is_waiting_long
from flushtracker.status.upgrade_facts import UpgradeFacts
from flushtracker.status.write_status import WriteStatus
from flushtracker.tracking.acks.ack_reader import Ack
from flushtracker.wal.lsn import format_lsn

_HEAD: Final = ("SHAPE", "SINCE", "HOLDS", "ACK IF REMOVED")
_GAP: Final = "  "
_NOTHING: Final = "–"
_DAY_MS: Final = 86_400_000


def config_arguments(config: Path) -> tuple[str, ...]:
    """What names this configuration in a command that is printed; nothing for the default."""
    return () if str(config) == DEFAULT_CONFIG else ("--config", str(config))


def overview_lines(
    overview: Overview, verdict: Verdict, *, width: int | None = None, config_arguments: Sequence[str] = ()
) -> list[str]:
    """The lines, each printable; a row of the table that exceeds ``width`` becomes two.

    ``config_arguments`` name the same configuration in commands.
    """
    slot = overview.slot.value
    lines = [] if slot is None else [_slot_line(slot)]
    lines.extend(_texts(verdict, "postgres"))
    lines.extend(_texts(verdict, "capture"))
    lines.extend(_job_and_ack(overview, verdict, width))
    lines.extend(other_lines(overview))
    lines.extend(_texts(verdict, "others"))
    lines.extend(_texts(verdict, "limits"))
    lines.extend(_texts(verdict, "upgrade"))
    if overview.upgrade is not None and verdict.exit_code == 0:
        lines.append(_safe_line(overview.upgrade))
    remedies = [_shapes_remedy(overview, verdict, config_arguments), *(each.remedy for each in verdict.findings)]
    lines.extend(f"remedy: {remedy}" for remedy in dict.fromkeys(remedies) if remedy)
    return [printable(line) for line in lines]


def _safe_line(facts: UpgradeFacts) -> str:
    sealed_lsn = facts.sealed_lsn or 0
    written = (facts.written_lsn or 0) - sealed_lsn
    since = f"; pg_upgrade refuses if any of the {bytes_text(written)} written since is a commit" if written > 0 else ""
    return f"safe to upgrade: sealed at {format_lsn(sealed_lsn)}: stop the server now, and run pg_upgrade{since}"


def utc_text(at_ms: int, now_ms: int) -> str:
    """A time, with its date unless it is within a day of now.

    >>> utc_text(1_790_000_000_000, 1_790_000_090_000), utc_text(1_790_000_000_000, 1_799_000_000_000)
    ('14:13:20Z', '2026-09-21 14:13:20Z')
    """
    at = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    return at.strftime("%H:%M:%SZ" if abs(now_ms - at_ms) < _DAY_MS else "%Y-%m-%d %H:%M:%SZ")


def _slot_line(slot: SlotStatus) -> str:
    parts = [
        f"slot {slot.name}",
        "active" if slot.is_active else "inactive",
        f"wal_status={slot.wal_status or 'unknown'}",
        f"retained {bytes_text(slot.retained_bytes)}",
    ]
    if slot.safe_wal_bytes is not None:
        parts.append(f"safe {bytes_text(slot.safe_wal_bytes)}")
    elif slot.wal_status in {"reserved", "extended"}:
        parts.append("safe until the disk is full (no max_slot_wal_keep_size)")
    return _GAP.join(parts)


def _job_and_ack(overview: Overview, verdict: Verdict, width: int | None) -> Iterator[str]:
    source, row = overview.job_source, overview.last_row
    job_lines = _texts(verdict, "job")
    if source is not None:
        yield _ack_line(overview, source)
        yield from _table(overview, source, width)
        yield from job_lines
    elif row is not None:
        yield f"{'; '.join(job_lines)}; below is what the ack table had at {_dated(overview, row)}"
        yield from _durable_lines(overview, row)
    else:
        yield from job_lines
        if overview.acks.error is None:
            owner = f"source {overview.source}" if overview.source else f"a source of slot {overview.slot_name}"
            yield f"ack table {overview.acks_table} has no ack of {owner}"
    yield from _texts(verdict, "acks")
    yield from _retired_lines(overview)


def _retired_lines(overview: Overview) -> Iterator[str]:
    """The retired sources of this slot that have something pending."""
    for source in () if overview.job_status is None else overview.job_status.sources:
        if source.retired_by == overview.source and source.pending_shapes:
            pending = f"{source.pending_shapes:,} shape{'s' if source.pending_shapes > 1 else ''}"
            yield f"source {source.source} is retired: {pending} of it stayed pending, and nothing waits for them"


def _ack_line(overview: Overview, source: SourceStatus) -> str:
    parts = [
        f"ack {_lsn(source.ack_lsn)}",
        f"last seen {_lsn(source.last_seen_lsn)}",
        _pending_text(source),
    ]
    behind = None if overview.job_status is None else overview.job_status.records_behind
    if behind:
        parts.append(f"{behind:,} records behind")
    return "   ".join(parts)


def _pending_text(source: SourceStatus) -> str:
    if source.gap is not None:
        return "set aside"
    return f"{source.pending_shapes:,} pending" if source.pending_shapes else "nothing pending"


def _durable_lines(overview: Overview, row: Ack) -> Iterator[str]:
    at = utc_text(milliseconds(row.acked_at), overview.at_ms)
    pending = f"{row.pending_shapes:,} pending" if row.pending_shapes else "nothing pending"
    yield f"ack {format_lsn(row.ack_lsn)}   at {at}: last seen {format_lsn(row.last_seen_lsn)}   {pending}"
    if row.blocking_shape is not None:
        since = (
            ""
            if row.blocking_since is None
            else f", since {utc_text(milliseconds(row.blocking_since), overview.at_ms)}"
        )
        yield f"at {at} it was held by {row.blocking_shape}{since}; only the job knows which shape holds it now"


def _table(overview: Overview, source: SourceStatus, width: int | None) -> Iterator[str]:
    """The holders, left-aligned in columns. An id that leaves no room for the other columns gets its own line."""
    if not source.holders:
        return
    rows = [_HEAD, *(_row(overview, source, holder) for holder in source.holders)]
    rest = [max(len(row[column]) for row in rows) for column in (1, 2, 3)]
    room = None if width is None else width - sum(rest) - 3 * len(_GAP)
    ids = [len(row[0]) for row in rows]
    first = max((size for size in ids if room is None or size <= room), default=len(_HEAD[0]))
    for shape_id, *figures in rows:
        columns = _GAP.join(f"{text:<{size}}" for text, size in zip(figures, rest, strict=True)).rstrip()
        if len(shape_id) > first:
            yield shape_id
            yield " " * first + _GAP + columns
        else:
            yield f"{shape_id:<{first}}{_GAP}{columns}"
    left = source.pending_shapes - len(source.holders)
    if left > 0:
        yield f"and {left:,} more, which hold no more than these"


def _row(overview: Overview, source: SourceStatus, holder: Holder) -> tuple[str, str, str, str]:
    since = seconds_text((overview.age_ms(holder.since_ms) or 0) / 1000)
    effect = format_lsn(holder.ack_if_removed) if would_move(source, holder) else "no change"
    return printable(holder.shape_id), since, bytes_text(holder.held_bytes), effect


def _shapes_remedy(overview: Overview, verdict: Verdict, config_arguments: Sequence[str]) -> str | None:
    """The remedy for the shapes that hold the ack, if they have held it for too long."""
    source, status, slot = overview.job_source, overview.job_status, overview.slot.value
    if source is None or status is None or slot is None or not are_holders_true(verdict.findings):
        return None
    is_slow = is_waiting_long(source, status.at_ms) or verdict.exceeds_a_limit
    if not is_slow or any(map(verdict.explains, source.holders[:1])):
        return None
    urls = [url for url, answer in overview.others if isinstance(answer.value, WriteStatus)]
    working = f"the writers' job at {listed(urls)} works" if urls else ""
    return shapes_remedy(source, status, slot.retained_bytes, config_arguments, working=working)


def _texts(verdict: Verdict, part: Part) -> list[str]:
    return [each.text for each in verdict.findings if each.part == part]


def _dated(overview: Overview, row: Ack) -> str:
    at_ms = milliseconds(row.acked_at)
    age = seconds_text(max(0, overview.at_ms - at_ms) / 1000)
    return f"{utc_text(at_ms, overview.at_ms)}, {age} ago"


def _lsn(lsn: int | None) -> str:
    return _NOTHING if lsn is None else format_lsn(lsn)
