"""``ShapesYaml``: the text of a shapes file, to which shapes are added and from which they are removed.

ruamel.yaml parses the text into events and writes it again, with its comments, order, quotes and anchors. Only white
space may change: indentation is made uniform, and a value on several lines may be joined. A text that would change in
any other way, such as one with a comment inside brackets, is refused.

ruamel.yaml attaches the comment lines between two shapes to the event before them, or to the one after them. Here they
move to the one after them before a shape is removed or added. A shape includes the comment lines below it that are
indented more than its dash. A heading above it is not part of it.
"""

from collections.abc import Sequence
from io import StringIO
from itertools import accumulate, takewhile
from typing import Any, Final, NamedTuple, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import CommentMark, MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    Event,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.tokens import CommentToken

from flushtracker.config.yaml_tree import Place, compose, shortened
from flushtracker.errors import ConfigError

_LIST: Final = "shapes"
_ROOT: Final = 2
"""The index of the root's event, after those that start the stream and the document."""
_UNLIMITED: Final = 2**31
_EXPECTED: Final = f"expected the list {_LIST}, a list alone, or one of its items"


class NewItems(NamedTuple):
    """Items of another text: their events, and the lines below the last one."""

    events: list[Any]
    below: list[str]


class ShapesYaml:
    """The shapes in ``text``, which messages call ``file``.

    Raises:
        ConfigError: the text is not YAML, or would not be kept.
    """

    def __init__(self, text: str, file: str) -> None:
        self._place = Place(file, {})
        compose(text, self._place)
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._events = self._parse(text)
        if isinstance(self._events[_ROOT], ScalarEvent):
            self._place.refuse(_line(self._events[_ROOT]), _EXPECTED)
        self._indents = _indents(self._events)
        before, after = _without_space(text), _without_space(self._emit(self._parse(text)))
        if before != after:
            same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
            ends = accumulate(len(_without_space(line)) for line in text.splitlines())
            line = next((line for line, end in enumerate(ends, 1) if end > same), 1)
            self._refuse(line, "this comment or notation cannot be kept")

    def text(self) -> str:
        """The edited text.

        Raises:
            ConfigError: the edit would lose a comment or a value.
        """
        content = _content(self._events)
        text = self._emit(self._events)
        # The emitter marks the comments that it has written, so events are written once.
        self._events = self._parse(text)
        if _content(self._events) != content:
            self._refuse(1, "the edit cannot be written without a loss")
        return text.replace("\n", self._newline)

    def items(self) -> NewItems:
        """The shapes of a file with the list ``shapes``, a list alone, or one shape.

        Raises:
            ConfigError: it is none of these, is empty, or has an alias, whose anchor may not exist in another file.
        """
        alias = next((event for event in self._events if isinstance(event, AliasEvent)), None)
        if alias is not None:
            self._place.refuse(_line(alias), f"*{shortened(alias.anchor)} is an alias; write out what it stands for")
        found = self._value(_LIST)
        start = _ROOT if found is None else found
        event = self._events[start]
        if found is None and isinstance(event, MappingStartEvent):
            spans = [(start, _node_end(self._events, start))]
        elif isinstance(event, SequenceStartEvent):
            spans = _children(self._events, start)
        else:
            self._place.refuse(_line(event), _EXPECTED)
        if not spans:
            raise ConfigError(f"{self._place.file} has no shapes")
        end = spans[-1][1]
        below = self._take_lines(end)
        return NewItems(self._events[spans[0][0] : end], below)

    def add(self, items: NewItems) -> None:
        """Add the items of another text at the end of the list."""
        start, spans = self._list()
        end = _node_end(self._events, start) - 1
        if spans:
            below, others = self._take_below(start, end)
            column = _column(self._events[spans[0][0]])
        else:
            below, others = [], self._take_lines(end + 1)
            column = _column(self._events[start - 1]) + self._indents["sequence"]
            self._events[start].flow_style = False
            self._events[start].comment, self._events[end].comment = self._events[end].comment, None
        by = column - _column(items.events[0])
        for event in items.events:
            _shift_comments(event, by)
        _put_above(items.events[0], below)
        _put_above(self._events[end], [*_shifted(items.below, by), *others])
        self._events[end:end] = items.events

    def remove(self, index: int) -> None:
        """Remove the item ``index`` of the list."""
        start, spans = self._list()
        first, end = spans[index]
        _, others = self._take_below(start, end)
        following = self._events[end]
        if len(spans) == 1:
            # A key without a value would be null.
            self._events[start].flow_style = True
            following = self._events[end + 1]
        _put_above(following, [*self._take_lines(first), *others])
        if len(spans) == 1:
            self._events[end].comment, self._events[start].comment = self._events[start].comment, None
        del self._events[first:end]

    def set_number(self, key: str, number: int) -> None:
        """Set ``key`` to ``number``, on a new line above the list if the file does not have the key."""
        found = self._value(key)
        if found is None:
            start, _ = self._list()
            pair = [ScalarEvent(None, None, (True, False), text) for text in (key, str(number))]
            self._events[start - 1 : start - 1] = pair
        else:
            self._events[found].value = str(number)

    def _refuse(self, line: int, fact: str, cause: Exception | None = None) -> NoReturn:
        self._place.refuse(line, f"{fact}; edit the file by hand", cause)

    def _parse(self, text: str) -> list[Any]:
        try:
            events = list(YAML(pure=True).parse(text.replace("\r\n", "\n")))
        except MarkedYAMLError as error:
            self._refuse(error.problem_mark.line + 1, f"ruamel.yaml cannot read it: {error.problem}", error)
        except YAMLError as error:
            self._refuse(1, f"ruamel.yaml cannot read it: {error}", error)
        below_list = None
        for event in events:
            # The end of a list that is not indented shares the comments below it with later events.
            if event.comment is not None and event.comment is below_list:
                event.comment = None
            elif isinstance(event, SequenceEndEvent):
                below_list = event.comment
            # ruamel.yaml cannot write these events.
            if isinstance(event, ScalarEvent) and (event.ctag is not None or not event.value):
                self._refuse(_line(event), "a tag cannot be kept" if event.value else "an empty value cannot be kept")
        return events

    def _emit(self, events: list[Any]) -> str:
        yaml, stream = YAML(pure=True), StringIO()
        yaml.width = _UNLIMITED
        yaml.indent(**self._indents)
        # The emitter leaves out the comment above ---.
        stream.writelines(line for token in _comments(events[_ROOT - 1])[1] for line in _lines(token))
        try:
            yaml.emit(events, stream)
        except YAMLError as error:
            self._refuse(1, f"ruamel.yaml cannot write it: {error}", error)
        return stream.getvalue()

    def _value(self, key: str) -> int | None:
        """The index of the event with which the value of a key of the file begins."""
        if not isinstance(self._events[_ROOT], MappingStartEvent):
            return None
        starts = [first for first, _ in _children(self._events, _ROOT)]
        pairs = zip(starts[::2], starts[1::2], strict=True)
        return next((value for name, value in pairs if getattr(self._events[name], "value", None) == key), None)

    def _list(self) -> tuple[int, list[tuple[int, int]]]:
        """The index where the list begins, and the span of each of its items."""
        start = self._value(_LIST)
        event = self._events[start or _ROOT]
        if start is None or not isinstance(event, SequenceStartEvent):
            self._place.refuse(_line(event), f"has no list {_LIST} of its own")
        spans = _children(self._events, start)
        if event.flow_style and spans:
            self._place.refuse(_line(event), "the list has items without a line '- …' of their own; give each one")
        return start, spans

    def _take_below(self, start: int, end: int) -> tuple[list[str], list[str]]:
        """Take the lines below the item before ``end``: those that belong to it, and the others."""
        lines = self._take_lines(end)
        dash = _column(self._events[start])
        below = list(takewhile(lambda line: line.lstrip(" ").startswith("#") and _indent(line) > dash, lines))
        return below, lines[len(below) :]

    def _take_lines(self, index: int) -> list[str]:
        """Take the comment lines and empty lines between an event and the one that is written before it."""
        last = index - 1
        # The end of a block is written with no character.
        while isinstance(self._events[last], CollectionEndEvent) and _is_empty(self._events[last]):
            last -= 1
        above = last if isinstance(self._events[last], SequenceStartEvent) else last + 1
        lines = _take_lines_after(self._events[last])
        for event in self._events[above : index + 1]:
            after, before = _comments(event)
            lines += [line for token in before for line in _lines(token)]
            event.comment = [after, None]
        return lines


def _indents(events: Sequence[Any]) -> dict[str, int]:
    """The indentation of the file's first mapping and of its first list below a key, as ``YAML.indent`` takes it."""
    found = {SequenceStartEvent: (2, 4), MappingStartEvent: (2, 2)}
    for key, start, first in reversed(list(zip(events, events[1:], events[2:], strict=False))):
        if isinstance(key, ScalarEvent) and isinstance(start, CollectionStartEvent) and not start.flow_style:
            found[type(start)] = _column(start) - _column(key), _column(first) - _column(key)
    (offset, sequence), (mapping, _) = found[SequenceStartEvent], found[MappingStartEvent]
    return {"mapping": max(mapping, 1), "sequence": max(sequence, offset + 2), "offset": offset}


def _node_end(events: Sequence[Event], start: int) -> int:
    """The index after the node that begins at ``start``."""
    depth, index = 0, start
    while True:
        depth += isinstance(events[index], CollectionStartEvent) - isinstance(events[index], CollectionEndEvent)
        index += 1
        if not depth:
            return index


def _children(events: Sequence[Event], start: int) -> list[tuple[int, int]]:
    """The span of each node in the collection that begins at ``start``; a mapping's keys and values alternate."""
    spans, index = [], start + 1
    while not isinstance(events[index], CollectionEndEvent):
        spans.append((index, _node_end(events, index)))
        index = spans[-1][1]
    return spans


def _comments(event: Event) -> tuple[Any, list[Any]]:
    """The token of the comment after an event, if any, and those of the comments before it."""
    after, before, *_ = event.comment or (None, None)
    return after, before or []


def _take_lines_after(event: Any) -> list[str]:
    """Take the comment lines that follow an event; a comment on the event's own line stays."""
    after, before = _comments(event)
    if after is None:
        return []
    if isinstance(event, ScalarEvent) and event.style in {"|", ">"}:
        # Its own line has ended.
        event.comment = [None, before]
        return _lines(after)
    own, _, lines = after.value.partition("\n")
    event.comment = [_token(f"{own}\n", after.column) if own else None, before]
    return list(lines.splitlines(keepends=True))


def _put_above(event: Event, lines: Sequence[str]) -> None:
    if lines:
        after, before = _comments(event)
        event.comment = [after, [_token("".join(lines), 0), *before]]


def _lines(token: Any) -> list[str]:
    text: str = token.value
    return (text if text.startswith("\n") else " " * token.column + text).splitlines(keepends=True)


def _token(text: str, column: int) -> CommentToken:
    return CommentToken(text, CommentMark(column), None)


def _shift_comments(event: Event, by: int) -> None:
    """Indent the comments of an event by so much more, or less."""
    after, before = _comments(event)
    # The comment after the | of a text is not a token, and is not aligned.
    for token in [token for token in (after, *before) if isinstance(token, CommentToken)]:
        first, *others = token.value.splitlines(keepends=True)
        token.value, token.column = "".join([first, *_shifted(others, by)]), max(token.column + by, 0)


def _shifted(lines: Sequence[str], by: int) -> list[str]:
    return [" " * (_indent(line) + by) + line.lstrip(" ") if line.strip() else line for line in lines]


def _content(events: Sequence[Any]) -> object:
    """What the events stand for, however it is written: their values, and the text of all comments."""
    values, comments = [], []
    for event in events:
        values.append((type(event), getattr(event, "value", None), getattr(event, "anchor", None)))
        after, before = _comments(event)
        # What is before the first item of a list is written after the comment on the line of its key.
        tokens = [after, *before] if isinstance(event, SequenceStartEvent) else [*before, after]
        comments += [getattr(token, "value", token) for token in tokens if token is not None]
    return values, _without_space("".join(comments))


def _is_empty(event: Event) -> bool:
    return bool(event.start_mark.index == event.end_mark.index)


def _line(event: Event) -> int:
    return int(event.start_mark.line) + 1


def _column(event: Event) -> int:
    return int(event.start_mark.column)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _without_space(text: str) -> str:
    return "".join(text.split())
