"""``flushtracker resync``: starts new incarnations of shapes, and waits until capture has registered them.

It raises ``incarnation`` of the shapes in the file. The file has the desired state, so the command may be killed and
repeated: a pending incarnation is not raised again.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.yaml_tree import ConfigOrigin, compose
from flushtracker.errors import ConfigError, ShapeError, listed
from flushtracker.operate.shapes.registry_reader import RegistryReader
from flushtracker.operate.shapes.remove_program import NOT_TAKEN, confirmed, require_defined
from flushtracker.operate.shapes.shapes_edit import ShapesEdit, edited
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import read_shapes_file


def run(arguments: argparse.Namespace) -> int:
    """Raise the incarnations in the file; then wait until the registry has them."""
    config, shape_ids = load_capture_config(arguments.config), tuple(dict.fromkeys(arguments.shapes))
    ids = read_shapes_file(config.shapes).ids
    for shape_id in shape_ids:
        require_defined(config.shapes, shape_id, ids)
    registry = RegistryReader(config.kafka, config.postgres.slot)
    if not arguments.yes and not confirmed(_question(shape_ids, registry), "Begin again?", "resyncing shapes"):
        print("nothing was changed")
        return NOT_TAKEN
    with edited(config.shapes) as file:
        wanted = resync(file, shape_ids, registry)
    # Printed after the edit: even if stdout fails, the file has changed.
    for shape_id, incarnation in wanted.items():
        print(f"shape {shape_id} has incarnation {incarnation} in {file.path}")
    if arguments.no_wait:
        return 0
    missing = registry.await_incarnations(wanted, arguments.timeout)
    if not missing:
        print(f"capture has begun {'it' if len(wanted) == 1 else 'them'} again; flushtracker snapshot makes a snapshot")
        return 0
    print(
        f"flushtracker resync: capture has not begun {listed(sorted(missing), most=10)} again within "
        f"{arguments.timeout:g} s. Does it run with this file? If its log has 'shapes not applied' or 'shapes not "
        "added yet', it says why; otherwise capture applies the change when it starts",
        file=sys.stderr,
    )
    return NOT_TAKEN


def resync(file: ShapesEdit, shape_ids: Sequence[str], registry: RegistryReader) -> Mapping[str, int]:
    """Raise the shapes' incarnations in their files, and change nothing else; return the incarnation of each.

    Raises:
        ConfigError: a shape cannot be resynced, or a file cannot be edited; the first of several files may have been.
    """
    before, ids = file.shapes, file.shapes.ids
    defined = {shape.id: shape for shape in before.definitions}
    changed = dict[Path, bytes]()
    wanted = dict[str, int]()
    for shape_id in shape_ids:
        require_defined(file.path, shape_id, ids)
        if shape_id not in defined:
            raise next(fault.error for fault in before.faults if fault.shape_id == shape_id)
        wanted[shape_id] = incarnation = _next(defined[shape_id], registry)
        if incarnation == defined[shape_id].incarnation:
            continue
        defined[shape_id] = replace(defined[shape_id], incarnation=incarnation)
        *above, name = (place.file for place in before.places[: ids.index(shape_id) + 1])
        path = Path(name)
        changed[path] = _with_incarnation(name, changed.get(path, file.files[path]), above.count(name), incarnation)
    after = None
    with suppress(ConfigError):
        after = file.parse(changed)
    if after is None or (after.definitions, after.ids) != (tuple(defined.values()), ids):
        numbers = ", ".join(f"{number} of {shape_id}" for shape_id, number in wanted.items())
        raise ShapeError(f"{file.path}: set the incarnations by hand ({numbers}): the notation hides where they belong")
    for path, content in changed.items():
        file.write(path, content)
    return wanted


def _with_incarnation(name: str, content: bytes, number: int, incarnation: int) -> bytes:
    """The file with the new incarnation of its entry ``number``, replacing the old one or after the id."""
    text = content.decode()
    root: Any = compose(text, ConfigOrigin(name, {}))
    entries = _values(root).get("shapes")
    entry = root if entries is None else entries.value[number]
    shape_id, old = _values(entry)["id"], _values(entry).get("incarnation")
    begin = end = shape_id.end_mark.index
    new = str(incarnation)
    if old is not None:
        begin, end = old.start_mark.index, old.end_mark.index
    elif entry.flow_style:
        new = f", incarnation: {new}"
    else:
        # A comment may follow the id.
        begin = end = end + len(re.split("[\r\n]", text[end:], maxsplit=1)[0])
        newline, column = "\r\n" if "\r\n" in text else "\n", entry.value[0][0].start_mark.column
        new = f"{newline}{' ' * column}incarnation: {new}"
    return (text[:begin] + new + text[end:]).encode()


def _values(mapping: Any) -> dict[str, Any]:
    return {key.value: value for key, value in mapping.value}


def _next(shape: ShapeDefinition, registry: RegistryReader) -> int:
    """The incarnation to begin: the one in the file, if capture has not begun it, else the next."""
    entry = registry.entry(shape.id)
    if entry is None:
        raise ShapeError(f"shape {shape.id!r} has not begun: capture's registry does not have it, so start capture")
    if shape.snapshot is False:
        raise ShapeError(
            f"shape {shape.id!r} has snapshot: false, so it cannot begin again: nothing would tell its rows from those "
            "of before. Set snapshot: true, or define it under a new id"
        )
    return max(shape.incarnation, entry.definition.incarnation + 1)


def _question(shape_ids: Sequence[str], registry: RegistryReader) -> Sequence[str]:
    entries = [entry for shape_id in shape_ids if (entry := registry.entry(shape_id)) is not None]
    live = [entry.definition.id for entry in entries if entry.removed_at is None]
    return (
        f"Each of {listed(shape_ids, most=10)} begins again with a new snapshot; followers get what differs.",
        "Until that is taken, the shape cannot be read.",
        *([f"Still live, and ended by this: {listed(live, most=10)}."] if live else []),
    )
