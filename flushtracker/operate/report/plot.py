"""The report as a plot: WAL received, WAL acknowledged, and the lag in the colour of the shape that held the ack back.

Needs ``matplotlib``; it renders to a file, so no display is needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from flushtracker.config.units import bytes_text
from flushtracker.errors import ConfigError
from flushtracker.operate.report.figures import Report
from flushtracker.tracking.acks.ack_reader import Ack
from flushtracker.wal.lsn import format_lsn

_RECEIVED: Final = "#1f3b5c"
_ACKNOWLEDGED: Final = "#2a9d3a"
_SHAPES: Final = ("#e07b39", "#8e6bbf", "#d1495b", "#3a9ea5", "#c9a227", "#7a8b2f", "#b05c8e", "#5b84c4")
_OTHERS: Final = "#9a9a9a"
_BYTE_SCALES: Final = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_TIME_SCALES: Final = (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0))
_MAX_MARKERS: Final = 100
_MAX_NAME_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class _Interval:
    """From one ack to the next: the WAL from ``floor`` to the received LSN, which rises from ``start`` to ``end``.

    Times are in seconds since the first ack, WAL positions in bytes after it.
    """

    shape_id: str | None
    starts_s: float
    ends_s: float
    floor: int
    start: int
    end: int


def plot_report(report: Report, file: Path) -> None:
    """Write the plot to ``file``, in the format of its extension, and create its directory.

    Raises:
        ConfigError: the file cannot be written.
    """
    figure = _figure(report)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise ConfigError(f"plot {file} cannot be written: {reason}; name another file with --plot") from error


def _figure(report: Report) -> Figure:
    acks = report.history.acks
    origin = acks[0].ack_lsn
    seconds = _elapsed_seconds(acks)
    intervals = [
        _Interval(
            here.blocking_shape,
            *between,
            here.ack_lsn - origin,
            here.last_seen_lsn - origin,
            after.last_seen_lsn - origin,
        )
        for (here, after), between in zip(pairwise(acks), pairwise(seconds), strict=True)
    ]
    figure = Figure(figsize=(11, 7.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    wal, lag = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    title = f"WAL of {_short(report.history.source)}: received, acknowledged, and what held it back"
    # A dollar sign in a name must not start a formula.
    figure.suptitle(title, fontsize=13, parse_math=False)
    wal.set_title(_summary(report), fontsize=10, loc="left")
    time_unit, time_size = next((scale for scale in _TIME_SCALES if seconds[-1] >= 2 * scale[1]), ("seconds", 1.0))
    times = [second / time_size for second in seconds]
    _draw_wal(wal, acks, times, intervals, time_size, _colours(report))
    _draw_lag(lag, intervals, time_size, _colours(report))
    lag.set_xlabel(f"{time_unit} since the first ack")
    for axes in (wal, lag):
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
        axes.grid(visible=True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = lag.get_legend_handles_labels()
    if handles:
        legend = figure.legend(
            handles, labels, loc="outside lower center", ncols=4, frameon=False, title="held back by"
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def _summary(report: Report) -> str:
    last = report.last_ack
    behind = "no" if report.is_complete else bytes_text(report.missing_bytes)
    return (
        f"{len(report.history.acks):,} acks, the last at {format_lsn(last.ack_lsn)}, written {report.written_at}, "
        f"{behind} WAL behind the last commit known"
    )


def _elapsed_seconds(acks: Sequence[Ack]) -> list[float]:
    """Seconds from the first ack to each; if the clock went back, time does not advance."""
    elapsed = [0.0]
    for ack in acks[1:]:
        elapsed.append(max(elapsed[-1], (ack.acked_at - acks[0].acked_at).total_seconds()))
    return elapsed


def _colours(report: Report) -> Mapping[str, str]:
    """A colour for each of the shapes that held the ack back longest; the other shapes share one."""
    return {shape.shape_id: colour for shape, colour in zip(report.held_back, _SHAPES, strict=False)}


def _draw_wal(
    axes: Axes,
    acks: Sequence[Ack],
    times: Sequence[float],
    intervals: Sequence[_Interval],
    time_size: float,
    colours: Mapping[str, str],
) -> None:
    """Draw both lines over time, and the area between them in the colour of the blocking shape."""
    origin = acks[0].ack_lsn
    unit, size = _byte_scale(max(ack.last_seen_lsn for ack in acks) - origin)
    acknowledged = [(ack.ack_lsn - origin) / size for ack in acks]
    axes.plot(
        times,
        [(ack.last_seen_lsn - origin) / size for ack in acks],
        color=_RECEIVED,
        linewidth=1.8,
        label="received: the last commit seen, as of each ack",
    )
    axes.step(times, acknowledged, where="post", color=_ACKNOWLEDGED, linewidth=1.8, label="acknowledged")
    if len(acks) <= _MAX_MARKERS:
        axes.plot(times, acknowledged, "o", color=_ACKNOWLEDGED, markersize=4, clip_on=False)
    for colour, group in _by_colour(intervals, colours).items():
        quads = [_quad(each, time_size, each.floor / size, each.start / size, each.end / size) for each in group]
        axes.add_collection(PolyCollection(quads, facecolor=colour, linewidth=0, alpha=0.25))
    axes.set_ylabel(f"WAL after {format_lsn(origin)} ({unit})")
    axes.legend(loc="upper left", frameon=False)


def _draw_lag(axes: Axes, intervals: Sequence[_Interval], time_size: float, colours: Mapping[str, str]) -> None:
    """Draw the WAL that was received and not acknowledged, over time."""
    max_lag = max((max(each.start, each.end) - each.floor for each in intervals), default=0)
    unit, size = _byte_scale(max_lag)
    names = {colour: shape_id for shape_id, colour in colours.items()} | {_OTHERS: "others"}
    for colour, group in _by_colour(intervals, colours).items():
        quads = [
            _quad(each, time_size, 0.0, (each.start - each.floor) / size, (each.end - each.floor) / size)
            for each in group
        ]
        collection = PolyCollection(quads, facecolor=colour, label=_label(names[colour]))
        # With an edge, an interval narrower than a pixel is still visible.
        collection.set(edgecolor=colour, linewidth=0.3, zorder=1.0 if colour == _OTHERS else 1.1)
        axes.add_collection(collection)
    axes.set_ylim(top=1.05 * max_lag / size or 1)
    axes.set_ylabel(f"lag ({unit})")


def _label(shape_id: str) -> str:
    # A legend omits labels that begin with an underscore.
    return f" {_short(shape_id)}"


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 1]}…"


def _byte_scale(max_bytes: int) -> tuple[str, float]:
    return next((scale for scale in _BYTE_SCALES if max_bytes >= scale[1]), ("bytes", 1.0))


def _by_colour(intervals: Sequence[_Interval], colours: Mapping[str, str]) -> Mapping[str, list[_Interval]]:
    """The intervals by the colour of their blocking shape, in colour order; those without a shape are omitted."""
    groups: dict[str, list[_Interval]] = {}
    for interval in intervals:
        if interval.shape_id is not None:
            groups.setdefault(colours.get(interval.shape_id, _OTHERS), []).append(interval)
    return {colour: groups[colour] for colour in (*_SHAPES, _OTHERS) if colour in groups}


def _quad(interval: _Interval, time_size: float, floor: float, start: float, end: float) -> list[tuple[float, float]]:
    left, right = interval.starts_s / time_size, interval.ends_s / time_size
    return [(left, floor), (left, start), (right, end), (right, floor)]
