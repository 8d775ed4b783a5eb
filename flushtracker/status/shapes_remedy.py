"""The remedy for the shapes that hold the ack: start their writer, or remove one if that is worth it."""

import shlex
from collections.abc import Sequence
from typing import Final

from flushtracker.config.units import seconds_text
from flushtracker.errors import listed, printable
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus
from flushtracker.status.stall import frees_most, stopped_together
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.names import LOG_WRITER

_NAMED: Final = 3


def shapes_remedy(
    source: SourceStatus,
    job: JobStatus,
    retained_bytes: int,
    config_arguments: Sequence[str] = (),
    *,
    working: str = "",
) -> str | None:
    """The remedy, for shapes that have held the ack for too long; ``config_arguments`` are those of its command.

    ``working`` names the ``flushtracker write`` that is known to work.

    A removal is final, so it is offered only if it frees most of what the slot retains, and never for a writer that is
    down.
    """
    if not source.holders:
        return None
    together = stopped_together(source)
    if len(together) > 1:
        ago = seconds_text((job.age_ms(together[0].since_ms) or 0) / 1000)
        names = listed([holder.shape_id for holder in together], most=_NAMED)
        remedy = (
            f"{names} stopped at the same moment, {ago} ago, so their {_writer(together)} is down: start it, or see "
        )
        remedy += "its log"
        return f"{remedy} ({working})" if working and together[0].writer == LOG_WRITER else remedy
    holder = source.holders[0]
    if not would_move(source, holder):
        which = _together(source, retained_bytes)
        return f"check the {_writer(source.holders)} of these shapes; removing only one changes nothing{which}"
    if not frees_most(source, holder.ack_if_removed, retained_bytes):
        return f"check the {_writer([holder])} of {holder.shape_id}; removing the shape would free little"
    command = shapes_command("remove-shape", config_arguments, [holder.shape_id])
    return f"check its {_writer([holder])}, or: {command} (final: its id is never used again)"


def _writer(holders: Sequence[Holder]) -> str:
    """The writer, or writers, of the shapes, by name."""
    names = sorted({printable(holder.writer) for holder in holders})
    return f"writer{'s' if len(names) > 1 else ''} ({', '.join(names)})"


def would_move(source: SourceStatus, holder: Holder) -> bool:
    """Whether the ack would move if only this shape were removed."""
    return holder.ack_if_removed > (source.ack_lsn or 0)


def _together(source: SourceStatus, retained_bytes: int) -> str:
    """Which of the first holders, which hold the same LSN, must be removed for the ack to move, if that frees much."""
    for number, holder in enumerate(source.holders, 1):
        ack_lsn = holder.ack_if_all_removed
        if ack_lsn is not None and (source.ack_lsn is None or ack_lsn > source.ack_lsn):
            if not frees_most(source, ack_lsn, retained_bytes):
                return ""
            names = [each.shape_id for each in source.holders[:number]]
            which = f"{', '.join(names[:-1])} and {names[-1]}" if number <= _NAMED else f"the first {number}"
            return f"; removing {which} would acknowledge {format_lsn(ack_lsn)}"
    return ""


def shapes_command(command: str, config_arguments: Sequence[str], shape_ids: Sequence[str]) -> str:
    """The shell command line that runs a ``flushtracker`` command on these shapes."""
    # An id may look like an option.
    separator = ["--"] if any(each.startswith("-") for each in shape_ids) else []
    return " ".join(["flushtracker", command, *map(shell_word, [*config_arguments, *separator, *shape_ids])])


def shell_word(text: str) -> str:
    """The text quoted for a shell; with unprintable characters, for bash and zsh."""
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(character: str) -> str:
    """A character between ``$'`` and ``'``; above 127, ``\\x`` would be a byte and not a character."""
    if character in "\\'":
        return f"\\{character}"
    if "\x80" <= character <= "\xff" and not character.isprintable():
        return f"\\u{ord(character):04x}"
    return printable(character)
