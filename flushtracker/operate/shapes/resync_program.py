"""``flushtracker resync``: begins shapes again under their ids, and waits until capture has registered that.

It raises ``incarnation`` of the shapes in the file. The file says what is wanted, so the command may be killed and
repeated: a shape whose next incarnation has yet to begin is not begun twice.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.errors import ShapeError, listed
from flushtracker.operate.shapes.registry_look import RegistryLook
from flushtracker.operate.shapes.remove_program import NOT_TAKEN, confirmed, require_known
from flushtracker.operate.shapes.shapes_edit import ShapesEdit, edited
from flushtracker.operate.shapes.shapes_yaml import ShapesYaml
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shapes_file import ShapesFile, read_shapes


def run(arguments: argparse.Namespace) -> int:
    """Raise the incarnations in the file; then wait until the registry has them."""
    config, shape_ids = load_capture_config(arguments.config), tuple(dict.fromkeys(arguments.shapes))
    ids = read_shapes(config.shapes).ids
    for shape_id in shape_ids:
        require_known(config.shapes, shape_id, ids)
    registry = RegistryLook(config.kafka, config.postgres.slot)
    if not arguments.yes and not confirmed(_question(shape_ids, registry), "Begin again?", "resyncing shapes"):
        print("nothing was changed")
        return NOT_TAKEN
    with edited(config.shapes) as file:
        wanted = resync(file, shape_ids, registry)
    # Printed after the edit: if stdout fails, the file has changed nevertheless.
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


def resync(file: ShapesEdit, shape_ids: Sequence[str], registry: RegistryLook) -> Mapping[str, int]:
    """Raise the shapes' incarnations in the file, and change nothing else; returns the incarnation of each.

    Raises:
        ConfigError: a shape cannot begin again, or the file cannot be edited; nothing was changed.
    """
    before, ids = file.shapes, file.shapes.ids
    content = ShapesYaml(file.text, str(file.path))
    defined = {shape.id: shape for shape in before.definitions}
    wanted = dict[str, int]()
    for shape_id in shape_ids:
        require_known(file.path, shape_id, ids)
        if shape_id not in defined:
            raise next(fault.error for fault in before.faults if fault.shape_id == shape_id)
        wanted[shape_id] = incarnation = _next(defined[shape_id], registry)
        if incarnation != defined[shape_id].incarnation:
            defined[shape_id] = replace(defined[shape_id], incarnation=incarnation)
            content.set_in_shape(ids.index(shape_id), "incarnation", incarnation)

    def verify(after: ShapesFile) -> None:
        expected = tuple(defined.values()), ids, before.allow_removing
        if (after.definitions, after.ids, after.allow_removing) != expected:
            raise ShapeError(f"{file.path}: this would change more than the incarnations; edit it by hand")

    if tuple(defined.values()) != before.definitions:
        file.replace(content.text(), verify)
    return wanted


def _next(shape: ShapeDefinition, registry: RegistryLook) -> int:
    """The incarnation that is to begin: the one that the file has, if capture has not begun it."""
    entry = registry.entry(shape.id)
    if entry is None:
        raise ShapeError(f"shape {shape.id!r} has not begun: capture's registry does not have it, so start capture")
    if shape.snapshot is False:
        raise ShapeError(
            f"shape {shape.id!r} has snapshot: false, so it cannot begin again: nothing would tell its rows from those "
            "of before. Set snapshot: true, or define it under a new id"
        )
    return max(shape.incarnation, entry.definition.incarnation + 1)


def _question(shape_ids: Sequence[str], registry: RegistryLook) -> Sequence[str]:
    entries = [entry for shape_id in shape_ids if (entry := registry.entry(shape_id)) is not None]
    live = [entry.definition.id for entry in entries if entry.removed_at is None]
    return (
        f"Each of {listed(shape_ids, most=10)} begins again with a new snapshot; followers get what differs.",
        "Until that is taken, the shape cannot be read.",
        *([f"Still live, and ended by this: {listed(live, most=10)}."] if live else []),
    )
