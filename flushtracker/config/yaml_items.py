"""Edits the items of a list in the text of a YAML file; every byte that belongs to no edited item stays what it is.

The list is the value of a key of the file's mapping, with a line ``- …`` for each item. Where an item begins and ends,
PyYAML's own nodes say. An item includes the rest of its last line, and comment lines below it that are indented more
than its dash. What precedes it, such as a heading in a comment, is not part of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from flushtracker.config.yaml_tree import AliasNode, Place, compose, line_of, shortened
from flushtracker.errors import ConfigError

_INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a list: its text without the dash, as if it began at the start of a line, and its node."""

    text: str
    node: yaml.Node


def items_of(text: str, file: str, key: str) -> tuple[Item, ...]:
    """The items of a file that is a mapping with the list ``key``, or itself such a list, or itself one item.

    Raises:
        ConfigError: it is not YAML, or none of these.
    """
    place = Place(file, {})
    root = compose(text, place, follow_aliases=False)
    if isinstance(root, yaml.MappingNode):
        found = _value(root, key)
        if found is None:
            return (_item(text, place, root),)
        root = found
    if not isinstance(root, yaml.SequenceNode):
        place.refuse(line_of(root), f"expected the list {key}, a list alone, or one of its items")
    return tuple(_item(text, place, node) for node in root.value)


def require_no_alias(items: Sequence[Item], file: str) -> None:
    """Raise ``ConfigError`` if an item has an alias, whose anchor might be out of reach where the item is put."""
    pending = [item.node for item in items]
    while pending:
        node = pending.pop()
        if isinstance(node, AliasNode):
            Place(file, {}).refuse(line_of(node), f"*{shortened(node.value)} is an alias; write out what it stands for")
        elif isinstance(node, yaml.MappingNode):
            pending.extend(part for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)


def with_items(text: str, file: str, key: str, items: Sequence[Item]) -> str:
    """``text`` with the items at the end of its list ``key``; raises ``ConfigError``."""
    place = Place(file, {})
    listed = _list(text, place, key)
    newline = _newline(text)
    if listed.value:
        _require_lines(text, place, listed)
        dash, end = _dash(text, listed.value[-1]), _end(text, listed.value[-1])
        indent = text[_line_start(text, dash) : dash]
        body = text
    else:
        start, stop = listed.start_mark.index, listed.end_mark.index
        body = text[:start].rstrip(" ") + text[stop:]
        end, indent = _line_end(body, len(text[:start].rstrip(" "))), _INDENT
    added = "".join(f"{indent}- {_indented(item.text, indent + _INDENT, newline)}{newline}" for item in items)
    head = body[:end]
    return head + ("" if head.endswith("\n") else newline) + added + body[end:]


def without_item(text: str, file: str, key: str, index: int) -> str:
    """``text`` without item ``index`` of its list ``key``; raises ``ConfigError``."""
    place = Place(file, {})
    listed = _list(text, place, key)
    _require_lines(text, place, listed)
    node = listed.value[index]
    start, end = _line_start(text, _dash(text, node)), _end(text, node)
    if len(listed.value) > 1:
        return text[:start] + text[end:]
    # A key without a value would be null, so an empty list takes the place of the last item.
    root = compose(text, place, follow_aliases=False)
    after_key = text.index(":", next(name.end_mark.index for name, _ in root.value if name.value == key)) + 1
    return f"{text[:after_key]} []{text[after_key:start]}{text[end:]}"


def with_number(text: str, file: str, key: str, number: int, *, after: str) -> str:
    """``text`` with ``key: number``: in place of the value that the key has, or as a line after the list ``after``."""
    place = Place(file, {})
    root = compose(text, place, follow_aliases=False)
    found = _value(root, key) if isinstance(root, yaml.MappingNode) else None
    if found is not None:
        return f"{text[: found.start_mark.index]}{number}{text[found.end_mark.index :]}"
    listed = _list(text, place, after)
    end = _end(text, listed.value[-1]) if listed.value else _line_end(text, listed.end_mark.index)
    column = next(name.start_mark.column for name, _ in root.value if name.value == after)
    newline = _newline(text)
    head = text[:end] if text[:end].endswith("\n") else text[:end] + newline
    return f"{head}{' ' * column}{key}: {number}{newline}{text[end:]}"


def _list(text: str, place: Place, key: str) -> yaml.SequenceNode:
    root = compose(text, place, follow_aliases=False)
    found = _value(root, key) if isinstance(root, yaml.MappingNode) else None
    if not isinstance(found, yaml.SequenceNode):
        place.refuse(1 if found is None else line_of(found), f"has no list {key} of its own")
    return found


def _value(root: yaml.MappingNode, key: str) -> yaml.Node | None:
    return next((value for name, value in root.value if getattr(name, "value", None) == key), None)


def _require_lines(text: str, place: Place, listed: yaml.SequenceNode) -> None:
    """Raise ``ConfigError`` unless each item begins on a line of its own."""
    nodes = listed.value
    starts = [text[_line_start(text, node.start_mark.index) : node.start_mark.index] for node in nodes]
    if listed.flow_style or any(start.strip() != "-" for start in starts):
        place.refuse(line_of(listed), "the list has items without a line '- …' of their own; give each one")


def _item(text: str, place: Place, node: yaml.Node) -> Item:
    column, start, last = node.start_mark.column, node.start_mark.index, _last_index(node)
    rest = text[last : _line_end(text, last)]
    end = last + len(rest) if rest.lstrip(" ").startswith("#") else last
    lines = text[start:end].replace("\r\n", "\n").rstrip("\n").split("\n")
    if not lines[0]:
        place.refuse(line_of(node), "an item of the list is empty; write it out")
    others = (line if line[:column].strip() else line[column:] for line in lines[1:])
    return Item("\n".join([lines[0], *others]), node)


def _indented(text: str, indent: str, newline: str) -> str:
    first, *others = text.rstrip().split("\n")
    return newline.join([first, *(f"{indent}{line}" if line.strip() else "" for line in others)])


def _dash(text: str, node: yaml.Node) -> int:
    return text.rindex("-", 0, node.start_mark.index)


def _end(text: str, node: yaml.Node) -> int:
    """The index after the item's last line, and after the comments below it that are indented more than its dash."""
    dash = _dash(text, node)
    column = dash - _line_start(text, dash)
    last = _last_index(node)
    end = last if text[last - 1 : last] == "\n" else _line_end(text, last)
    while end < len(text):
        following = _line_end(text, end)
        line = text[end:following]
        if not line.lstrip(" ").startswith("#") or len(line) - len(line.lstrip(" ")) <= column:
            break
        end = following
    return end


def _last_index(node: yaml.Node) -> int:
    """Where the node's own text ends: the end of a block also covers what follows it, up to the next item."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _line_end(text: str, index: int) -> int:
    """The index after the line break of the line that ``index`` is in."""
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def require_same_items(before: Sequence[Item], after: Sequence[Item], file: str) -> None:
    """Raise ``ConfigError`` unless both have the same items: the same keys and values, however they are written."""
    if list(map(_content, before)) != list(map(_content, after)):
        raise ConfigError(f"{file}: the edit would change other items of the list, so nothing was changed")


def _content(item: Item) -> object:
    return _content_of(item.node)


def _content_of(node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return [(_content_of(key), _content_of(value)) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [_content_of(value) for value in node.value]
    return node.tag, node.value
