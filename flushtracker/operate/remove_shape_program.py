"""``flushtracker remove-shape``: takes a shape out of the shapes file, and looks whether capture has taken it."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.yaml_items import without_item
from flushtracker.errors import ConfigError
from flushtracker.operate.registry_look import RegistryLook
from flushtracker.operate.shapes_edit import ShapesEdit, edited
from flushtracker.shapes.shapes_file import ShapesFile, read_shapes

NOT_TAKEN = 1
"""The exit code if capture has not taken the change in time."""


def run(arguments: argparse.Namespace) -> int:
    """Remove the shape from the file; then wait until the registry shows it removed."""
    config, shape_id = load_capture_config(arguments.config), arguments.shape
    _require_known(config.shapes, shape_id, [shape.id for shape in read_shapes(config.shapes).definitions])
    registry = None if arguments.no_wait else RegistryLook(config.kafka, config.postgres.slot)
    if not arguments.yes and not _is_confirmed(shape_id, config.shapes):
        print("nothing was changed")
        return NOT_TAKEN
    with edited(config.shapes) as file:
        in_file = frozenset(shape.id for shape in file.shapes.definitions)
        is_last = not ((in_file if registry is None else registry.live_ids) - {shape_id})
        has_limit = remove(file, shape_id, allow_removing=is_last)
    # A full disk under stdout is no failure of the edit.
    print(f"removed shape {shape_id} from {file.path}")
    if has_limit:
        print("it was the last one, so the file says 'allow_removing: 1' now; take that line out again afterwards")
    return 0 if registry is None else _wait(registry, shape_id, arguments.timeout)


def remove(file: ShapesEdit, shape_id: str, *, allow_removing: bool) -> bool:
    """Take the shape out of the file, and nothing else.

    With ``allow_removing``, the file also gets that line, unless it has one; returns whether it did.

    Raises:
        ConfigError: it has no such shape, another one depends on it, or the file does not allow it to be edited.
    """
    before = file.shapes.definitions
    ids = [shape.id for shape in before]
    _require_known(file.path, shape_id, ids)
    index = ids.index(shape_id)
    text = without_item(file.text, str(file.path), "shapes", index)
    adds_line = allow_removing and file.shapes.allow_removing == 0
    if adds_line:
        text = f"{text.rstrip()}\nallow_removing: 1\n"

    def verify(after: ShapesFile) -> None:
        expected = ShapesFile((*before[:index], *before[index + 1 :]), 1 if adds_line else file.shapes.allow_removing)
        if after != expected:
            raise ConfigError(f"{file.path}: taking {shape_id!r} out would change more than that; edit it by hand")

    file.replace(text, verify)
    return adds_line


def _require_known(path: Path, shape_id: str, ids: Sequence[str]) -> None:
    if shape_id not in ids:
        near = difflib.get_close_matches(shape_id, ids, n=3)
        advice = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ConfigError(f"{path} has no shape {shape_id!r}{advice}")


def _is_confirmed(shape_id: str, path: Path) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("removing a shape is final; say --yes where nobody can be asked")
    print(f"Removing {shape_id} from {path} is final: its id is never used again.")
    print("Nothing more is sent to its writer, and what it has not flushed holds back the slot no longer.")
    return input("Remove it? [y/N] ").strip().lower() in {"y", "yes"}


def _wait(registry: RegistryLook, shape_id: str, timeout_s: float) -> int:
    entry = registry.entry(shape_id)
    if entry is None:
        print("capture had not registered it, so there is nothing more to do")
        return 0
    if entry.removed_at is not None:
        print(f"capture had ended it before, at {entry.removed_at}, so there is nothing more to do")
        return 0
    if registry.await_removal(shape_id, timeout_s):
        print("capture has taken it: the shape is removed")
        return 0
    print(
        f"flushtracker remove-shape: capture has not taken it within {timeout_s:g} s. Does it run with this file? "
        "If its log has 'shapes not applied', that says why; otherwise it takes the change when it starts",
        file=sys.stderr,
    )
    return NOT_TAKEN
