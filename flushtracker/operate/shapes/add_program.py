"""``flushtracker add-shape``: adds shapes to the shapes file, and waits until capture has registered them."""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.yaml_tree import Place, read_text
from flushtracker.errors import ConfigError, FlushtrackerError, ShapeError, listed
from flushtracker.operate.shapes.catalog_check import catalog_errors
from flushtracker.operate.shapes.registry_look import RegistryLook
from flushtracker.operate.shapes.remove_program import NOT_TAKEN
from flushtracker.operate.shapes.shapes_edit import ShapesEdit, edited, refuse
from flushtracker.operate.shapes.shapes_yaml import ShapesYaml
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import ShapesFile

_STDIN = Path("-")


def run(arguments: argparse.Namespace) -> int:
    """Add the shapes to the file, then wait until the registry has them."""
    config = load_capture_config(arguments.config)
    items = read_items(arguments.file)
    registry = RegistryLook(config.kafka, config.postgres.slot)
    check = (
        None if arguments.offline else partial(catalog_errors, config.postgres.connection, config.postgres.publication)
    )
    with edited(config.shapes) as file:
        added = add(file, items, registry, check)
    # Printed after the edit: if stdout fails, the file has changed nevertheless.
    names = listed([shape.id for shape in added], most=10)
    print(f"added {'shape' if len(added) == 1 else 'shapes'} {names} to {file.path}")
    if arguments.no_wait:
        return 0
    missing = registry.await_addition({shape.id for shape in added}, arguments.timeout)
    if not missing:
        print(f"capture has registered {'it' if len(added) == 1 else 'them'}")
        return 0
    print(
        f"flushtracker add-shape: capture has not registered {listed(sorted(missing), most=10)} within "
        f"{arguments.timeout:g} s. Does it run with this file? If its log has 'shape refused', 'shapes not applied' or "
        "'shapes not added yet', it says why; otherwise capture applies the change when it starts",
        file=sys.stderr,
    )
    return NOT_TAKEN


def read_items(path: Path) -> ShapesYaml:
    """The shapes of a file: a list ``shapes``, a list alone, or one shape; ``-`` is stdin."""
    if path == _STDIN:
        return ShapesYaml(sys.stdin.read(), "standard input")
    return ShapesYaml(read_text(path, Place(str(path), {})), str(path))


def add(
    file: ShapesEdit,
    items: ShapesYaml,
    registry: RegistryLook,
    check: Callable[[Sequence[ShapeDefinition]], Sequence[FlushtrackerError]] | None = None,
) -> tuple[ShapeDefinition, ...]:
    """Add the shapes at the end of the file's list; returns them. ``check`` returns what the catalog does not allow.

    Raises:
        ConfigError: one cannot be read, its id is or was in use, or the catalog does not allow it; nothing was changed.
        PostgresError: ``check`` could not be made; nothing was changed.
    """
    before = file.shapes
    content = ShapesYaml(file.text, str(file.path))
    content.add(items)
    added: list[ShapeDefinition] = []

    def verify(after: ShapesFile) -> None:
        count = len(before.ids)
        new_ids = after.ids[count:]
        refuse([fault.error for fault in after.faults if fault.shape_id in new_ids])
        kept = after.definitions[: len(before.definitions)], after.ids[:count], after.allow_removing
        if kept != (before.definitions, before.ids, before.allow_removing):
            raise ConfigError(f"{file.path}: adding the shapes would change others; edit it by hand")
        added.extend(after.definitions[len(before.definitions) :])
        for shape in added:
            _require_unused(registry, shape.id)
        if check is not None:
            refuse(check(added))

    file.replace(content.text(), verify)
    return tuple(added)


def _require_unused(registry: RegistryLook, shape_id: str) -> None:
    entry = registry.entry(shape_id)
    if entry is None:
        return
    state = "is still live" if entry.removed_at is None else f"was removed or ended at {entry.removed_at}"
    raise ShapeError(f"shape {shape_id!r} {state} in capture's registry; an id is never used twice, so use a new one")
