"""The report as tables in a terminal. Needs ``rich``."""

from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flushtracker.config.units import bytes_text, seconds_text
from flushtracker.operate.report.figures import Report, thinned
from flushtracker.tracking.acks.ack_reader import Ack
from flushtracker.wal.lsn import format_lsn

_MOST_ACKS: Final = 40
_MOST_SHAPES: Final = 20


def print_report(report: Report, console: Console) -> None:
    """Print how the ack advanced, what held it back, and whether it has reached the last commit."""
    console.print(_acks(report))
    console.print()
    if report.held_back:
        console.print(_held_back(report))
        console.print()
    console.print(_verdict(report), soft_wrap=True, highlight=False)


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False, collapse_padding=True
    )


def _acks(report: Report) -> Table:
    acks = report.history.acks
    shown = thinned(acks, _MOST_ACKS)
    count = f"{len(acks):,} acks" if len(shown) == len(acks) else f"{len(shown)} of {len(acks):,} acks"
    table = _table(f"How the ack of {escape(report.history.source)} advanced: {count}")
    for name in ("batch", "ack LSN", "last seen", "lag", "pending"):
        table.add_column(name, justify="right", no_wrap=True)
    # The only column that shrinks in a narrow terminal, because rich first narrows columns that may wrap.
    table.add_column("held back by", overflow="ellipsis")
    table.add_column("for", justify="right", no_wrap=True)
    for ack in shown:
        table.add_row(
            str(ack.batch_id),
            format_lsn(ack.ack_lsn),
            format_lsn(ack.last_seen_lsn),
            bytes_text(ack.lag_bytes),
            f"{ack.pending_shapes:,}",
            "–" if ack.blocking_shape is None else escape(ack.blocking_shape),
            _blocked_for(ack),
        )
    return table


def _blocked_for(ack: Ack) -> str:
    if ack.blocking_since is None:
        return ""
    return seconds_text(max(0.0, (ack.acked_at - ack.blocking_since).total_seconds()))


def _held_back(report: Report) -> Table:
    shapes = report.held_back
    shown = shapes[:_MOST_SHAPES]
    more = "" if len(shown) == len(shapes) else f" ({len(shown)} of {len(shapes):,} shapes)"
    table = _table(f"Which shape held it back, as of each ack{more}")
    table.add_column("shape", overflow="ellipsis")
    for name in ("acks", "batches", "time", "most WAL waiting"):
        table.add_column(name, justify="right", no_wrap=True)
    for shape in shown:
        table.add_row(
            escape(shape.shape_id),
            f"{shape.acks:,}",
            f"{shape.batches:,}",
            seconds_text(shape.seconds),
            bytes_text(shape.max_lag_bytes),
        )
    return table


def _verdict(report: Report) -> str:
    written, commit = (
        f"{format_lsn(report.last_ack.ack_lsn)} of {report.written_at}",
        format_lsn(report.last_commit_lsn),
    )
    if report.is_complete:
        return f"[bold green]final ack {written} = last commit known: everything is acknowledged[/]"
    blocking_shape = report.last_ack.blocking_shape
    reason = "" if blocking_shape is None else f", blocked by {escape(blocking_shape)} then"
    return (
        f"[bold red]error: final ack {written} is {bytes_text(report.missing_bytes)} behind the last commit known, "
        f"{commit}{reason}; for now, ask flushtracker status[/]"
    )
