"""``ShapesYaml``: the text of a shapes file, to which shapes are added and from which they are removed.

ruamel.yaml keeps comments, order, quotes and anchors; white space and notations may change. It attaches the comment
lines between two shapes to either of them. Here they move to the one below before a shape is removed or added. A shape
includes the comment lines below it that are indented more than its dash. A heading above it is not part of it.
"""

import re
from collections import Counter
from collections.abc import Iterable
from io import StringIO
from itertools import takewhile
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark, YAMLError
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import FoldedScalarString, LiteralScalarString
from ruamel.yaml.tokens import AliasToken, CommentToken, ScalarToken

from flushtracker.config.yaml_tree import Place, compose, line_of, shortened
from flushtracker.errors import ConfigError

_LIST: Final = "shapes"
_EXPECTED: Final = f"expected the list {_LIST}, a list alone, or one of its items"
_HEAD: Final = re.compile(r"(?:(?:[ \t]*(?:#.*)?|%.*)\n)*---[ \t]*(?:#.*)?\n")
_FOOT: Final = re.compile(r"^\.\.\.(?:\s.*)?\Z", re.MULTILINE | re.DOTALL)


class _Untyped(VersionedResolver):
    """Knows no type but null, so that values are written as they were."""

    versioned_resolver: ClassVar = {key: [("tag:yaml.org,2002:null", re.compile("(null)?$"))] for key in ("", "n")}


class _Comment(NamedTuple):
    line: int
    column: int
    text: str
    next_line: int
    """The line of the first token after it."""


class ShapesYaml:
    """The shapes in ``text``, which messages call ``file``.

    Raises:
        ConfigError: the text is not YAML.
    """

    def __init__(self, text: str, file: str) -> None:
        self._place = Place(file, {})
        self._line = line_of(compose(text, self._place))
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._text = text.replace("\r\n", "\n")
        # ruamel.yaml drops what is outside of the document.
        head, foot = _HEAD.match(self._text), _FOOT.search(self._text)
        self._head, self._foot = head[0] if head else "", foot[0] if foot else ""
        body = self._text[len(self._head) : len(self._text) - len(self._foot)]
        self._comments = _comments(body)
        self._kept = _texts(self._comments)
        self._end = body.count("\n") + 1
        self._yaml = YAML(typ="rt", pure=True)
        self._yaml.Resolver, self._yaml.preserve_quotes, self._yaml.width = _Untyped, True, 2**31
        try:
            self._data = self._yaml.load(body)
        # Of these the last three are about values that their tags do not fit.
        except (YAMLError, ValueError, KeyError, AttributeError) as error:
            self._refuse(f"ruamel.yaml cannot read it: {getattr(error, 'problem', error)}", error)

    def text(self) -> str:
        """The edited text.

        Raises:
            ConfigError: the edit would lose a comment or a value.
        """
        stream = StringIO()
        try:
            self._yaml.dump(self._data, stream)
            body = stream.getvalue()
            values = self._yaml.load(body)
        except (YAMLError, NotImplementedError, AssertionError) as error:
            self._refuse(f"ruamel.yaml cannot write it: {error}", error)
        # A value with a tag has no equality.
        if repr(values) != repr(self._data):
            self._refuse("a value cannot be kept")
        written = _texts(_comments(body))
        for comment in (self._kept - written) + (written - self._kept):
            self._refuse(f"the comment {shortened(comment)!r} cannot be kept")
        return f"{self._head}{body}{self._foot}".replace("\n", self._newline)

    def add(self, source: "ShapesYaml") -> None:
        """Add the shapes of another text at the end of the list.

        It has the list ``shapes``, a list alone, or one shape, and no alias: the anchor may not exist in this file.
        """
        shapes = self._list()
        items = source._items()
        by = (self._yaml.sequence_indent or 0) - items[0].lc.col
        indentation = rf"^ {{0,{-by}}}" if by < 0 else r"^(?!---|\.\.\.|%)"
        # Comments are not indented with their item.
        source = ShapesYaml(re.sub(indentation, " " * by, source._text, flags=re.MULTILINE), source._place.file)
        items = source._items()
        own, others = _split(_take_lines(shapes, len(shapes)), shapes.lc.col)
        shapes.fa.set_block_style()
        for index, item in enumerate(items):
            lines = _take_lines(items, index) if index else own
            shapes.append(item)
            shapes.ca.items[len(shapes) - 1] = items.ca.items.get(index)
            _put_lines(shapes, len(shapes) - 1, lines)
        _put_lines(shapes, len(shapes), _take_lines(items, len(items)) + others)
        self._kept += _texts(comment for comment in source._comments if comment.line >= items.lc.line)

    def remove(self, index: int) -> None:
        """Remove the item ``index`` of the list."""
        shapes, lines = self._list(), self._data.lc.data
        starts = [shapes.lc.data[item][0] for item in range(len(shapes))] + [lines[key][0] for key in self._data]
        end = min((line for line in starts if line > starts[index]), default=self._end)
        own = takewhile(
            lambda comment: comment.column > shapes.lc.col or comment.next_line < end,
            (comment for comment in self._comments if starts[index] <= comment.line < end),
        )
        self._kept -= _texts(own)
        above = _take_lines(shapes, index)
        _, others = _split(_take_lines(shapes, index + 1), shapes.lc.col)
        del shapes[index]
        if shapes:
            _put_lines(shapes, index, above + others)
        else:
            self._set_empty("".join(above + others))

    def set_number(self, key: str, number: int) -> None:
        """Set ``key`` to ``number``, on a new line above the list if the file does not have the key."""
        if key in self._data:
            self._data[key] = str(number)
        else:
            self._data.insert(list(self._data).index(_LIST), key, str(number))

    def set_in_shape(self, index: int, key: str, number: int) -> None:
        """Set ``key`` of the item ``index`` to ``number``, below its id if it does not have the key."""
        shape = self._list()[index]
        if key in shape:
            shape[key] = str(number)
        else:
            shape.insert(list(shape).index("id") + 1, key, str(number))

    def _refuse(self, fact: str, cause: Exception | None = None) -> NoReturn:
        raise ConfigError(f"{self._place.file}: {fact}; edit the file by hand") from cause

    def _list(self) -> CommentedSeq:
        """The list to edit, whose indentation the new text has."""
        shapes = self._data.get(_LIST) if isinstance(self._data, CommentedMap) else None
        if not isinstance(shapes, CommentedSeq):
            self._place.refuse(self._line, f"has no list {_LIST}")
        if shapes and shapes.fa.flow_style():
            self._place.refuse(self._line, "the list has items without a line '- …' of their own; give each one")
        offset, sequence = 2, 4
        if shapes:
            offset, sequence = (column - self._data.lc.col for column in (shapes.lc.col, shapes.lc.data[0][1]))
        nested = (value for item in shapes for value in item.values() if isinstance(value, CommentedMap))
        mapping = next((next(iter(value.lc.data.values()))[1] - sequence for value in nested if _is_block(value)), 2)
        self._yaml.indent(mapping=max(mapping, 1), sequence=max(sequence, offset + 2), offset=offset)
        return shapes

    def _items(self) -> CommentedSeq:
        """The shapes to add."""
        for token in YAML(typ="safe", pure=True).scan(self._text):
            if isinstance(token, AliasToken):
                fact = f"*{shortened(token.value)} is an alias; write out what it stands for"
                self._place.refuse(token.start_mark.line + 1, fact)
        items = self._data.get(_LIST, self._data) if isinstance(self._data, CommentedMap) else self._data
        if isinstance(items, CommentedMap) and items is self._data:
            items.ca.comment = None
            items = CommentedSeq([items])
            items.lc.line = self._data.lc.line
            items.lc.add_idx_line_col(0, [items.lc.line, self._data.lc.col])
        if not isinstance(items, CommentedSeq) or not all(isinstance(item, CommentedMap) for item in items):
            self._place.refuse(self._line, _EXPECTED)
        if not items:
            raise ConfigError(f"{self._place.file} has no shapes")
        return items

    def _set_empty(self, lines: str) -> None:
        """Write the list without an item, above ``lines``: a key without a value would be null."""
        *_, after, before = self._data.ca.items.pop(_LIST, [None, None])
        lines = "".join([*(line for token in before or [] for line in _lines(token)), lines])
        self._data[_LIST] = CommentedSeq()
        self._data[_LIST].fa.set_flow_style()
        if after or lines:
            token = CommentToken((after.value if after else "\n") + lines, CommentMark(0), None)
            self._data.ca.items[_LIST] = [None, None, token, None]


def _take_lines(items: CommentedSeq, index: int) -> list[str]:
    """Take the comment lines and empty lines between an item and the one before it."""
    if index == len(items):
        tokens, items.ca.end = items.ca.end, []
    else:
        entry = items.ca.items.setdefault(index, [None] * 4)
        tokens, entry[1] = entry[1] or [], None
    node, key = items, index - 1
    # A value that begins above its key is an alias.
    while index and _is_block(value := node[key]) and value.lc.line >= node.lc.data[key][0]:
        node, key = value, [*(value if isinstance(value, CommentedMap) else range(len(value)))][-1]
        tokens, node.ca.end = [*node.ca.end, *tokens], []
    lines = [line for token in tokens for line in _lines(token)]
    place = 2 if isinstance(node, CommentedMap) else 0
    entry = node.ca.items.get(key) or [None] * 4
    if not index or entry[place] is None:
        return lines
    if isinstance(node[key], LiteralScalarString | FoldedScalarString):
        # Its own line has ended.
        below, entry[place] = _lines(entry[place]), None
        return below + lines
    own, _, text = entry[place].value.partition("\n")
    entry[place].value = f"{own}\n"
    entry[place] = entry[place] if own else None
    return [*text.splitlines(keepends=True), *lines]


def _put_lines(items: CommentedSeq, index: int, lines: list[str]) -> None:
    """Put comment lines and empty lines above an item, or below the last one."""
    tokens = [CommentToken(line.lstrip(" "), CommentMark(_indent(line)), None) for line in lines]
    if index < len(items):
        items.ca.items[index] = [(items.ca.items.get(index) or [None])[0], tokens, None, None]
    else:
        items.ca.comment, items.ca.end = items.ca.comment or [None, None], tokens


def _split(lines: list[str], column: int) -> tuple[list[str], list[str]]:
    """The lines that belong to the item above them, whose dash is in ``column``, and the others."""
    below = list(takewhile(lambda line: not line.strip() or _indent(line) > column, lines))
    return [line for line in below if line.strip()], [line for line in below if not line.strip()] + lines[len(below) :]


def _is_block(value: Any) -> bool:
    return isinstance(value, CommentedMap | CommentedSeq) and bool(value) and not value.fa.flow_style()


def _lines(token: Any) -> list[str]:
    text: str = token.value
    return (text if text.startswith("\n") else " " * token.column + text).splitlines(keepends=True)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _texts(comments: Iterable[_Comment]) -> Counter[str]:
    return Counter(comment.text for comment in comments)


def _comments(text: str) -> list[_Comment]:
    """The comments of a text: the scanner leaves them out, so they are between its tokens."""
    found, line, last, end = [], 0, 0, 0
    text += "\n"
    for token in YAML(typ="safe", pure=True).scan(text):
        start = token.start_mark.index
        if isinstance(token, ScalarToken) and token.style in {"|", ">"}:
            start = text.index("\n", start)
        for match in re.compile("#.*").finditer(text, end, max(start, end)):
            line, last = line + text.count("\n", last, match.start()), match.start()
            column = last - text.rfind("\n", 0, last) - 1
            found.append(_Comment(line, column, match[0].rstrip(), token.start_mark.line))
        end = max(end, token.end_mark.index)
    return found
