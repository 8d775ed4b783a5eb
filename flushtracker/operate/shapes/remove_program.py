"""``flushtracker remove-shape``: removes a shape from the shapes file, and waits until capture has removed it."""

import argparse
import sys
from collections.abc import Iterable, Sequence, Set
from pathlib import Path

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.capture.shape_registry import must_be_allowed
from flushtracker.errors import ConfigError, did_you_mean, listed
from flushtracker.operate.shapes.registry_look import RegistryLook
from flushtracker.operate.shapes.shapes_edit import ShapesEdit, edited
from flushtracker.operate.shapes.shapes_yaml import ShapesYaml
from flushtracker.shapes.shapes_file import ShapesFile, read_shapes

NOT_TAKEN = 1
"""The exit code if capture has not applied the change in time."""


def run(arguments: argparse.Namespace) -> int:
    """Remove the shape from the file; then wait until the registry shows it removed."""
    config, shape_id = load_capture_config(arguments.config), arguments.shape
    require_known(config.shapes, shape_id, read_shapes(config.shapes).ids)
    registry = RegistryLook(config.kafka, config.postgres.slot)
    question = (
        f"Removing {shape_id} from {config.shapes} is final: its id is never used again.",
        "Its writer is sent nothing more, and what it has not flushed no longer holds back the slot.",
    )
    if not arguments.yes and not confirmed(question, "Remove it?", "removing a shape is final"):
        print("nothing was changed")
        return NOT_TAKEN
    with edited(config.shapes) as file:
        allowed = remove(file, shape_id, registry.live_ids)
    # Printed after the edit: if stdout fails, the file has changed nevertheless.
    print(f"removed shape {shape_id} from {file.path}")
    if allowed:
        print(
            f"without {listed(sorted(allowed), most=10)} the file lacks more than half of the live shapes, so it "
            f"has 'allow_removing: {len(allowed)}' now; remove that line afterwards"
        )
    return 0 if arguments.no_wait else _wait(registry, shape_id, arguments.timeout)


def remove(file: ShapesEdit, shape_id: str, live_ids: Iterable[Set[str]]) -> Set[str]:
    """Remove the shape from the file, and nothing else.

    ``live_ids`` are the registry's. They include shapes that were removed from the file before, and that capture has
    not removed yet. If the file then lacks so many live shapes that it must allow it, sets ``allow_removing`` and
    returns those shapes; otherwise returns none.

    Raises:
        ConfigError: the file has no such shape, another one depends on it, capture would refuse the file as it is, or
            the file cannot be edited.
    """
    before, ids = file.shapes, file.shapes.ids
    require_known(file.path, shape_id, ids)
    _require_readable(before)
    registered = tuple(live_ids)
    _require_allowed(file, lacking(registered, frozenset(ids)))
    content = ShapesYaml(file.text, str(file.path))
    for index in reversed(range(len(ids))):
        if ids[index] == shape_id:
            content.remove(index)
    gone = lacking(registered, frozenset(ids) - {shape_id})
    allowed = max(file.shapes.allow_removing, len(gone))
    has_changed = allowed != file.shapes.allow_removing
    if has_changed:
        content.set_number("allow_removing", allowed)

    def verify(after: ShapesFile) -> None:
        # What depended on it in a cycle may be right now.
        wrong = {fault.shape_id for fault in before.faults}
        left = tuple(shape for shape in before.definitions if shape.id != shape_id)
        expected = left, tuple(each for each in ids if each != shape_id), allowed
        kept = tuple(shape for shape in after.definitions if shape.id not in wrong)
        if (kept, after.ids, after.allow_removing) != expected:
            raise ConfigError(f"{file.path}: removing {shape_id!r} would change more than that; edit it by hand")

    file.replace(content.text(), verify)
    return gone if has_changed else frozenset()


def lacking(live_ids: Iterable[Set[str]], left: Set[str | None]) -> Set[str]:
    """The live shapes that a file with those ``left`` lacks, if they are so many that it must allow it; else none."""
    missing = [(ids - left, len(ids)) for ids in live_ids]
    return max((gone for gone, live in missing if must_be_allowed(len(gone), live)), key=len, default=frozenset())


def _require_allowed(file: ShapesEdit, gone: Set[str]) -> None:
    """Raise ``ConfigError`` if the file already lacks too many shapes: it may have been truncated."""
    if len(gone) > file.shapes.allow_removing:
        raise ConfigError(
            f"{file.path} lacks more than half of the live shapes already, so capture refuses it: "
            f"{listed(sorted(gone), most=10)}. Complete it; or, if they are to be removed, add the line "
            f"'allow_removing: {len(gone)}' to it"
        )


def require_known(path: Path, shape_id: str, ids: Sequence[str | None]) -> None:
    """Raise ``ConfigError`` if the file at ``path``, with these ``ids``, does not define the shape."""
    if shape_id not in ids:
        hint = did_you_mean(shape_id, [each for each in ids if each is not None])
        raise ConfigError(f"{path} has no shape {shape_id!r}{hint}")


def _require_readable(shapes: ShapesFile) -> None:
    for fault in shapes.faults:
        if fault.shape_id is None:
            raise ConfigError(
                f"{fault.error}. Correct this entry first: it may be that of any shape, so until then capture removes "
                "none"
            )


def confirmed(lines: Iterable[str], question: str, fact: str) -> bool:
    """Print the lines, and ask; raises ``ConfigError``, which begins with the ``fact``, if there is no terminal."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{fact}; without a terminal, confirm it with --yes")
    print(*lines, sep="\n")
    return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


def _wait(registry: RegistryLook, shape_id: str, timeout_s: float) -> int:
    entry = registry.entry(shape_id)
    if entry is None:
        print("capture had not registered it, so there is nothing more to do")
        return 0
    if entry.removed_at is not None:
        print(f"capture had already ended it, at {entry.removed_at}, so there is nothing more to do")
        return 0
    if registry.await_removal(shape_id, timeout_s):
        print("capture has removed the shape")
        return 0
    print(
        f"flushtracker remove-shape: capture has not removed it within {timeout_s:g} s. Does it run with this file? "
        "Its log says why, with 'shapes not applied'; otherwise capture applies the change when it starts",
        file=sys.stderr,
    )
    return NOT_TAKEN
