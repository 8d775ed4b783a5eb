"""``Judge``: checks the rules of the contract against what a writer was sent, notified and stored.

It keeps the first violation of each rule. Offsets are compared per shape of a source.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from flushtracker.errors import ConfigError, DecodeError
from flushtracker.events.records import record_of
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.kafka.topic_reader import ReadRecord
from flushtracker.shape_log.shape_chain import cursor_after
from flushtracker.trials.conformance.rows_judge import RowsJudge, Shape, shown
from flushtracker.trials.conformance.simulated_source import WRITER
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn

Rule: TypeAlias = Literal[
    "runs",
    "format",
    "durable",
    "power",
    "once",
    "whole",
    "rows",
    "snapshot",
    "live",
    "again",
    "gap",
    "others",
    "heals",
    "resync",
    "removal",
    "own",
]
RULES: Final[Mapping[Rule, str]] = {
    "runs": "the writer runs until it is killed",
    "format": "it publishes only `flushed` notifications to flushes, each key in one partition",
    "durable": "what it has notified is in its storage after a kill",
    "power": "what it has notified is in its storage after a power failure",
    "once": "its storage has each item once, in order, as it was sent, and nothing else",
    "whole": "its readers see whole transactions only, in order, and all that it has notified",
    "rows": "its rows are a complete snapshot's, with all changes that it does not contain",
    "snapshot": "a shape has rows once its snapshot is complete",
    "live": "it notifies everything that it was sent",
    "again": "when it starts, it notifies again how far each shape is durable",
    "gap": "it notifies nothing past a gap",
    "others": "the other shapes continue after a gap",
    "heals": "a start heals the gap",
    "resync": "it takes the next incarnation of a shape that is begun again",
    "removal": "it continues after a shape is removed",
    "own": "it neither stores nor notifies shapes of other writers",
}


class Judge:
    """Its methods must be called for everything that happens in a trial, in order; ``violations`` has the first
    violation of each rule.

    ``writer`` is the name of the writer under test.
    """

    def __init__(self, writer: str = WRITER) -> None:
        self.writer = writer
        self.violations: dict[Rule, str] = {}
        self.notified: dict[Shape, LogOffset] = {}
        self.said: set[Shape] = set()
        """The shapes that were notified at or past their greatest offset since :meth:`restarted`."""
        self.removed: set[Shape] = set()
        self.progress = 0
        """How often a shape was notified at a greater offset than before."""
        self.events_sent = 0
        self.rows = RowsJudge()
        self._items: dict[Shape, dict[LogOffset, LogItem]] = {}
        self._committed: dict[Shape, set[int]] = {}
        """For each shape, the LSNs of the transactions whose commit was sent to it, and so all their items for it."""
        self._reached: dict[Shape, LogOffset] = {}
        self._barriers: dict[Shape, LogOffset] = {}
        self._partitions: dict[bytes, int] = {}
        self._of_others: set[Shape] = set()

    def violate(self, rule: Rule, fact: str) -> None:
        """Record a violation, unless the rule already has one."""
        self.violations.setdefault(rule, fact)

    def sent(self, event: ShapeChangesEvent) -> None:
        shape = event.source, event.shape_id
        self.events_sent += 1
        if event.writer != self.writer:
            self._of_others.add(shape)
            return
        self.rows.sent(event)
        self._items.setdefault(shape, {}).update({item.offset: item for item in event.items})
        if event.commit is not None:
            self._committed.setdefault(shape, set()).add(event.last_log_offset.tx_offset)
        self._reached[shape] = max(cursor_after(event), self._reached.get(shape, LogOffset.before_all()))

    def lost(self, shape: Shape) -> None:
        """Note that the shape's next event will not be sent, so the writer may notify nothing past the last one."""
        self._barriers[shape] = self._reached[shape]

    def healed(self, shape: Shape) -> None:
        """Note that everything from the lost event on is being resent."""
        del self._barriers[shape]

    def restarted(self) -> None:
        """Note that the writer is about to start again."""
        self.said.clear()

    def read(self, record: ReadRecord) -> None:
        """Check a record read from the topic of flush notifications."""
        try:
            event = FlushNotification.from_json(record.value)
        except DecodeError as error:
            self.violate("format", f"a record of partition {record.partition} is no flush notification: {error}")
            return
        self._check_record(record, event)
        shape, offset = (event.source, event.shape_id), event.offset
        if event.writer != self.writer or shape in self._of_others:
            whose = "another writer's" if shape in self._of_others else f"{self.writer!r}'s"
            self.violate("own", f"{_name(shape)} is {whose}, and is notified by writer {event.writer!r}")
            return
        if event.type != "flushed":
            return
        before = self.notified.get(shape, LogOffset.before_all())
        if offset >= before:
            self.notified[shape] = offset
            self.said.add(shape)
            self.progress += offset > before
        reached, barrier = self._reached.get(shape), self._barriers.get(shape)
        if barrier is not None and offset > barrier:
            self.violate("gap", f"{_name(shape)} is notified at {offset}, past the gap after {barrier}")
        elif reached is None or offset > reached:
            what = "before anything" if reached is None else f"past {reached}, the end of what"
            self.violate("durable", f"{_name(shape)} is notified at {offset}, {what} was sent")

    def _check_record(self, record: ReadRecord, event: FlushNotification) -> None:
        expected = record_of(event).key.encode()
        shown = f"a notification of {_name((event.source, event.shape_id))} at {event.offset}"
        if event.type != "flushed":
            self.violate("format", f"{shown} has type {event.type}, which only capture may publish")
        if record.key != expected:
            self.violate("format", f"{shown} has the key {record.key!r:.200}, expected {expected!r:.200}")
        elif self._partitions.setdefault(expected, record.partition) != record.partition:
            before = self._partitions[expected]
            self.violate("format", f"{shown} is in partition {record.partition}, one before in partition {before}")

    def behind(self) -> list[str]:
        """Return what was sent but not notified: one text for each shape that is not removed and has no gap."""
        found = []
        for shape in self._items.keys() - self.removed - self._barriers.keys():
            last = max(self._items[shape], default=LogOffset.before_all())
            has_ended = last.tx_offset <= self.rows.starts_after(shape)
            if not has_ended and self.notified.get(shape, LogOffset.before_all()) < last:
                found.append(f"{_name(shape)} was sent items up to {last}, {self._notified_text(shape)}")
        return sorted(found)

    def not_notified_again(self) -> list[str]:
        """Return the shapes that were notified before the restart, but not since."""
        silent = self.notified.keys() - self.said - self.removed
        missing = sorted(each for each in silent if self.notified[each].tx_offset > self.rows.starts_after(each))
        return [f"{_name(shape)} was {self._notified_text(shape)} before" for shape in missing]

    def has_notified(self, last_items: Mapping[Shape, LogOffset]) -> bool:
        """Return whether each shape is removed, or notified at or past its offset."""
        return all(
            shape in self.removed or self.notified.get(shape, LogOffset.before_all()) >= offset
            for shape, offset in last_items.items()
        )

    def dumped(self, lines: Iterable[str], when: str, rule: Rule = "durable", rows: Iterable[str] = ()) -> None:
        """Check the output of the dump command, which was run after a kill; ``when`` says after which one.

        A missing item violates ``rule``: ``power`` after a power failure. ``rows`` is the output of the rows command:
        items may be missing only if a snapshot that contains them is shown there.

        Raises:
            ConfigError: a line does not have the required form.
        """
        stored: dict[Shape, list[LogOffset]] = {}
        with_rows = shown(rows).keys()
        for shape, offset in self._own_items("the dump", lines, when, "once"):
            offsets = stored.setdefault(shape, [])
            if offsets and offset <= offsets[-1]:
                self.violate("once", f"{when}, {_name(shape)} has the item at {offset} after that at {offsets[-1]}")
            offsets.append(offset)
        for shape, notified in self.notified.items():
            limit = min(notified, self._barriers.get(shape, notified))
            missing = {offset for offset in self._items.get(shape, {}) if offset <= limit} - {*stored.get(shape, ())}
            missing = {offset for offset in missing if offset.tx_offset > self.rows.starts_after(shape)}
            if shape in with_rows:
                missing = {offset for offset in missing if not self.rows.may_leave_out(shape, offset.tx_offset)}
            if missing and shape not in self.removed:
                fact = f"{_name(shape)} is notified at {notified}, but the item at {min(missing)} is not in the dump"
                self.violate(rule, f"{when}, {fact}")

    def seen(self, lines: Iterable[str], when: str) -> None:
        """Check the output of the read command, which can be run at any time.

        Raises:
            ConfigError: a line does not have the required form.
        """
        seen: dict[Shape, dict[int, set[LogOffset]]] = {}
        for shape, offset in self._own_items("the read", lines, when, "whole"):
            seen.setdefault(shape, {}).setdefault(offset.tx_offset, set()).add(offset)
        for shape in sorted(self._items.keys() | seen.keys()):
            if fact := self._not_whole(shape, seen.get(shape, {})):
                self.violate("whole", f"{when}, {fact}")

    def _own_items(self, where: str, lines: Iterable[str], when: str, rule: Rule) -> Iterator[tuple[Shape, LogOffset]]:
        """The items of the writer's own shapes, each of which must be as it was sent; raises ``ConfigError``."""
        for number, line in enumerate(lines, start=1):
            shape, offset, content = _parse(where, number, line)
            if shape in self._of_others:
                self.violate("own", f"{when}, {where} has items of {_name(shape)}, which is another writer's")
                continue
            if content != _content(self._items.get(shape, {}).get(offset)):
                self.violate(rule, f"{when}, the item of {_name(shape)} at {offset} is not as any that was sent")
            yield shape, offset

    def _not_whole(self, shape: Shape, seen: Mapping[int, set[LogOffset]]) -> str | None:
        """Return how the visible items differ from a prefix of the shape's transactions, or ``None`` if they do not."""
        whole: dict[int, set[LogOffset]] = {}
        for offset in self._items.get(shape, {}):
            if offset.tx_offset in self._committed.get(shape, ()):
                whole.setdefault(offset.tx_offset, set()).add(offset)
        for lsn, offsets in sorted(seen.items()):
            if lsn not in whole:
                return f"{_name(shape)} shows a transaction at {format_lsn(lsn)} whose commit it was not sent"
            if offsets != whole[lsn]:
                count = f"{len(offsets)} of the {len(whole[lsn])} items"
                return f"{_name(shape)} shows {count} of the transaction at {format_lsn(lsn)}"
        durable = self.notified.get(shape, LogOffset.before_all())
        durable = min(durable, self._barriers.get(shape, durable))
        left_out = {lsn for lsn in whole if self.rows.may_leave_out(shape, lsn)}
        for lsn in sorted(() if shape in self.removed else whole.keys() - seen.keys() - left_out):
            if LogOffset.last_of(lsn) <= durable:
                return (
                    f"{_name(shape)} is notified at {durable}, but does not show the transaction at {format_lsn(lsn)}"
                )
            if lsn < max(seen, default=-1):
                return f"{_name(shape)} shows a transaction after the one at {format_lsn(lsn)}, but not that one"
        return None

    def row_faults(self, lines: Iterable[str], *, newest: bool = False) -> list[str]:
        """Return what is wrong with the output of the rows command, which can be run at any time.

        With ``newest``, every shape must show its newest snapshot.

        Raises:
            ConfigError: a line does not have the required form.
        """
        durable = {shape: min(at, self._barriers.get(shape, at)) for shape, at in self.notified.items()}
        return self.rows.faults(lines, durable, newest=newest)

    def rows_of_others(self, lines: Iterable[str]) -> list[str]:
        """Return the shapes of other writers in the output of the rows command; raises ``ConfigError``."""
        found = sorted(shown(lines).keys() & self._of_others)
        return [f"the rows have {_name(shape)}, which is another writer's" for shape in found]

    def _notified_text(self, shape: Shape) -> str:
        return f"notified up to {self.notified[shape]}" if shape in self.notified else "notified nothing"


def _name(shape: Shape) -> str:
    return f"shape {shape[1]!r} of {shape[0]}"


def _content(item: LogItem | None) -> object:
    return None if item is None else (item.operation, item.key, item.value)


def _parse(where: str, number: int, line: str) -> tuple[Shape, LogOffset, object]:
    try:
        row: dict[str, Any] = json.loads(line)
        offset = LogOffset(int(row["offset"]["tx_offset"]), int(row["offset"]["op_offset"]))
        return (row["source"], row["shape_id"]), offset, (row["operation"], row["key"], row["value"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"line {number} of {where} is {line!r:.80}, but must be an object with source, shape_id, offset "
            "(tx_offset, op_offset), operation, key and value"
        ) from error
