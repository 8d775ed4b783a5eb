"""Writers that break one rule of the contract each: the example writer with a line or two changed."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
WRITER: Final = ROOT / "examples" / "sqlite_writer.py"
DUMP: Final = f"{sys.executable} {ROOT}/examples/dump_sqlite.py {{data}}/shapes.db"
READ: Final = f"{DUMP} --whole"
ROWS: Final = f"{DUMP} --rows"
_PRIMARY_KEY: Final = ",\n                                PRIMARY KEY (source, shape_id, tx, op));"
_COMMIT: Final = "        db.commit()  # First durable,\n"
_FLUSH: Final = "        notifier.flush()  # then said.\n"
_NEXT: Final = '    if position == "next":\n'
_IGNORES: Final = (
    '    if event.writer != me or not counts(shape, event.incarnation) or shape in removed or position == "gap":\n'
)
_IGNORES_ALL_BUT_GAPS: Final = "    if event.writer != me or shape in removed:\n"
_CURSOR: Final = 'db.execute("REPLACE INTO cursors VALUES (?, ?, ?, ?)", (*shape, *cursors[shape]))'
_NOTED: Final = "    notifier.flushed(*shape, cursors[shape])"
_REMOVED: Final = "                    removed.add(shape)\n"


@dataclass(frozen=True, slots=True)
class FaultyWriter:
    """``changes``: text of the example, and what it becomes; ``rule`` is what it breaks.

    ``also``: rules that may fail as a consequence. ``kills``: so many find it with nearly any seed. ``read`` and
    ``rows``: what its readers see. ``is_silent``: the trial finds it by waiting in vain.
    """

    story: str
    rule: str
    changes: Mapping[str, str]
    also: frozenset[str] = frozenset()
    kills: int = 1
    read: str = READ
    rows: str | None = None
    is_silent: bool = False

    def __str__(self) -> str:
        return self.story

    def write(self, file: Path) -> None:
        """Write its program."""
        text = WRITER.read_text()
        for number, old in enumerate(self.changes):
            assert text.count(old) == 1, old
            text = text.replace(old, f"<{number}>")
        for number, new in enumerate(self.changes.values()):
            text = text.replace(f"<{number}>", new)
        file.write_text(text)


AIMED: Final = (
    FaultyWriter(
        "it notifies before the commit",
        "durable",
        {_COMMIT: _FLUSH, _FLUSH: _COMMIT},
        also=frozenset({"whole"}),
        kills=12,
    ),
    FaultyWriter(
        "it notifies early, but only on a resend",
        "durable",
        {_NEXT: f'    if position == "resend":\n    {_NOTED}\n        notifier.flush()\n{_NEXT}'},
        also=frozenset({"whole"}),
        kills=24,
    ),
    FaultyWriter(
        "it commits every 50 ms, and notifies at once",
        "durable",
        {
            _COMMIT: "        if (now := __import__('time').monotonic()) > due:\n"
            f"            due = now + 0.05\n    {_COMMIT}",
            "removed: set": "due = 0.0\nremoved: set",
        },
        also=frozenset({"whole"}),
        kills=12,
    ),
    FaultyWriter(
        "it stores how far it is before what it has",
        "durable",
        {
            _NEXT: f"{_NEXT}        reached = ft.cursor_after(event)\n"
            f"        {_CURSOR.replace('cursors[shape]', 'reached')}\n        db.commit()\n"
        },
        also=frozenset({"whole"}),
        kills=24,
    ),
)
"""Those that a kill finds only at certain moments."""
PLAIN: Final = (
    FaultyWriter(
        "a kill loses its buffer's tail",
        "durable",
        {_COMMIT: f"        if int(__import__('time').time()) % 2:\n    {_COMMIT}"},
        also=frozenset({"whole"}),
        kills=8,
    ),
    FaultyWriter(
        "it notifies a transaction by its first part",
        "durable",
        {_NOTED: "    notifier.flushed(*shape, ft.LogOffset.last_of(event.last_log_offset.tx_offset))"},
        also=frozenset({"whole"}),
    ),
    FaultyWriter(
        "it stores a resend again",
        "once",
        {
            ",\n                                PRIMARY KEY (source, shape_id, tx, op));": ");",
            "ft.new_items(event, cursors.get(shape))": "event.items",
        },
        also=frozenset({"whole"}),
        kills=4,
    ),
    FaultyWriter(
        "it stores what was absent as null",
        "once",
        {"json.dumps(item.value)": "json.dumps(item.value and {'note': None, **item.value})"},
        also=frozenset({"whole"}),
    ),
    FaultyWriter("its readers see parts of transactions", "whole", {}, kills=4, read=DUMP),
    FaultyWriter("its readers are late", "whole", {}, read=f"sh -c '{READ} | head -n -1'"),
    FaultyWriter(
        "its readers apply what a snapshot contains once more",
        "rows",
        {},
        rows="sh -c 'sed s/end.contained.contains/min/ "
        f"{ROOT}/examples/dump_sqlite.py | {sys.executable} - {{data}}/shapes.db --rows'",
        is_silent=True,
    ),
    FaultyWriter(
        "it shows the snapshot of another writer's shape",
        "own",
        {"(entry.definition.writer != me or entry.removed_at)": "entry.removed_at"},
        rows=ROWS,
        is_silent=True,
    ),
    FaultyWriter(
        "it takes a gap for nothing",
        "gap",
        {_IGNORES: f'    position = "next" if position == "gap" else position\n{_IGNORES_ALL_BUT_GAPS}'},
        also=frozenset({"durable", "whole"}),
    ),
    FaultyWriter(
        "it starts in silence",
        "again",
        {"    notifier.start(cursors)\n": ""},
        # What a kill left unsaid a silent start never says.
        also=frozenset({"live", "others", "heals", "removal"}),
        is_silent=True,
    ),
    FaultyWriter(
        "it ends at a gap",
        "runs",
        {_IGNORES: f'    if position == "gap":\n        sys.exit(3)\n{_IGNORES_ALL_BUT_GAPS}'},
    ),
)
"""Those that are found at once."""
_SYNCED: Final = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
UNSYNCED: Final = (
    FaultyWriter("it never syncs", "power", {_SYNCED: "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;"}),
    FaultyWriter(
        "it syncs now and then, and notifies at once",
        "power",
        {_SYNCED: "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"},
    ),
    # SQLite syncs the folder with a journal's file, which this one does not have.
    FaultyWriter(
        "it syncs its file, but not the folder",
        "power",
        {_SYNCED: "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = FULL;"},
    ),
)
"""Those that only a power failure finds."""
SLOW: Final = (
    FaultyWriter(
        "a gap stops every shape of the source",
        "others",
        {
            _IGNORES: '    if position == "gap":\n        stopped.add(event.source)\n'
            '    if event.writer != me or shape in removed or position == "gap" or event.source in stopped:\n',
            "removed: set": "stopped: set[str] = set()\nremoved: set",
        },
        is_silent=True,
        also=frozenset({"heals", "removal", "live"}),
    ),
    FaultyWriter(
        "it never takes a shape again after a gap",
        "heals",
        {
            _IGNORES: f'    if position == "gap":\n        removed.add(shape)\n{_IGNORES_ALL_BUT_GAPS}',
        },
        is_silent=True,
        also=frozenset({"removal", "live"}),
    ),
    FaultyWriter(
        "it ignores a shape that begins again",
        "resync",
        {"    if snapshots.begin(": "    if incarnation > 1:\n        return False\n    if snapshots.begin("},
        is_silent=True,
        also=frozenset({"live", "others", "heals", "removal", "snapshot", "rows"}),
        rows=ROWS,
    ),
    FaultyWriter(
        "it waits for ever once a shape is removed",
        "removal",
        {_REMOVED: f"{_REMOVED}                    __import__('time').sleep(1000)\n"},
        is_silent=True,
        also=frozenset({"live"}),
    ),
)
"""Those that take several timeouts to find."""
