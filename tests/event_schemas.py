"""``docs/schemas`` of the streams of events, generated from the structs that read and write them.

``python -m tests.event_schemas`` writes the files; a test compares them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.json import schema

from flushtracker.events import structs

FOLDER: Final = Path(__file__).parents[1] / "docs" / "schemas"
_TITLES: Final[Mapping[str, tuple[Any, str]]] = {
    "fragments": (structs.Fragment, "An event of the stream fragments"),
    "flushes": (structs.Flush, "An event of the stream flushes"),
    "shape_changes": (structs.ShapeChanges, "An event of the stream shape_changes"),
    "snapshots": (structs.Snapshot, "An event of the streams snapshots and snapshots_taken"),
    "shapes": (structs.Entry, "An entry of the stream shapes, the registry"),
}
_DESCRIPTIONS: Final = {
    "fragments": "Metadata of one fragment: what was sent to which shape.",
    "flushes": "A writer's notification: how far a shape is durable, or that it was removed.",
    "shape_changes": "One fragment's changes for one shape.",
    "snapshots": "Some rows of a shape's snapshot, or its end, which is the last event of an attempt.",
    "shapes": "A shape with its definition, its start and its end; what is kept of a removed shape; a table as it "
    "was; a partition that it has or had; or a source with its start.",
}
_NOT_STATED: Final = {
    "fragments": "last_log_offset.tx_offset equals lsn; follows is below last_log_offset; a shape's last_offset is in "
    "the transaction at lsn, and its op_offset is at most that of last_log_offset + 1; in a fragment whose "
    "last_log_offset has an op_offset from 2^58 to 2^58 + 2^32 - 1, a list part, each shape is listed at 2^58 plus the "
    "CRC-32 of its id, which is past what the fragment follows in the list, and at most that op_offset.",
    "shape_changes": "follows is below last_log_offset.",
    "snapshots": "the ranges of unseen are ascending, and do not overlap.",
    "shapes": "the timelines of a history and their LSNs are ascending.",
}
_OF_JSON: Final = (
    "Of JSON's own rules, a schema cannot state these: UTF-8 without a byte order mark, no key twice in one object, no "
    "half of a surrogate pair, integers without fraction and exponent."
)
_KEEPALIVE: Final = {
    "if": {"properties": {"xid": {"type": "null"}}},
    "then": {"properties": {"commit": {"type": "object"}, "shapes": {"maxItems": 0}}},
}
_COUNTED: Final = {
    "if": {"required": ["last_offset"], "properties": {"last_offset": {"type": "object"}}},
    "then": {"properties": {"change_count": {"minimum": 1}}},
    "else": {"properties": {"change_count": {"const": 0}}},
}
_WITH_KEY: Final = {
    "if": {"properties": {"operation": {"const": "truncate_partition"}}},
    "then": {"properties": {"key": {"type": "string"}}},
}
_CONDITIONS: Final[Mapping[str, Mapping[str, object]]] = {
    "Fragment": _KEEPALIVE,
    "FragmentShape": _COUNTED,
    "Item": _WITH_KEY,
}
"""What a struct's fields say about each other, as far as a schema can state it."""


def schemas() -> Iterator[tuple[str, str]]:
    """Each stream's schema, as the text of its file."""
    for stream, (kind, title) in _TITLES.items():
        found = schema(kind)
        for name, conditions in _CONDITIONS.items():
            if name in found["$defs"]:
                found["$defs"][name] |= conditions
        described = [_DESCRIPTIONS[stream], "Readers ignore unknown keys."]
        if stream in _NOT_STATED:
            described.append(f"A schema cannot state this either: {_NOT_STATED[stream]}")
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
        whole = {**head, "description": " ".join([*described, _OF_JSON]), **found}
        yield stream, json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the files."""
    for stream, text in schemas():
        (FOLDER / f"{stream}.json").write_text(text)


if __name__ == "__main__":
    main()
