"""``flushtracker remove-shape``: deletes a shape's own file, and waits until capture has removed the shape."""

import argparse
import sys
from collections.abc import Iterable, Sequence, Set
from pathlib import Path

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.capture.shapes.shape_registry import must_be_allowed
from flushtracker.errors import ConfigError, did_you_mean, listed
from flushtracker.operate.shapes.registry_reader import RegistryReader
from flushtracker.operate.shapes.shapes_edit import ShapesEdit, edited
from flushtracker.shapes.shapes_file import ShapesFile, read_shapes_file

NOT_TAKEN = 1
"""The exit code if capture has not applied the change in time."""


def run(arguments: argparse.Namespace) -> int:
    """Delete the shape's file; then wait until the registry shows the shape removed."""
    config, shape_id = load_capture_config(arguments.config), arguments.shape
    _own_file(config.shapes, read_shapes_file(config.shapes), shape_id)
    registry = RegistryReader(config.kafka, config.postgres.slot)
    question = (
        f"Removing {shape_id} from {config.shapes} is final: its id is never used again.",
        "Its writer is sent nothing more, and what it has not flushed no longer holds back the slot.",
    )
    if not arguments.yes and not confirmed(question, "Remove it?", "removing a shape is final"):
        print("nothing was changed")
        return NOT_TAKEN
    with edited(config.shapes) as file:
        path, allowed = remove(file, shape_id, registry.live_ids)
    # Printed after the edit: even if stdout fails, the file has changed.
    print(f"removed shape {shape_id} from {file.path}")
    if allowed:
        print(
            f"without {listed(sorted(allowed), most=10)} more than half of the live shapes are missing, so {path} now "
            f"has 'allow_removing: {len(allowed)}' in place of the shape; take that out afterwards"
        )
    return 0 if arguments.no_wait else _wait(registry, shape_id, arguments.timeout)


def remove(file: ShapesEdit, shape_id: str, live_ids: Iterable[Set[str]]) -> tuple[Path, Set[str]]:
    """Remove the shape by deleting the file that has only this shape; return that file.

    ``live_ids`` are the registry's. They include shapes that were removed from the files earlier and that capture has
    not removed yet. If the files then lack so many live shapes that this must be allowed, the file gets
    ``allow_removing`` instead of the shape, and those shapes are returned, too; otherwise none.

    Raises:
        ConfigError: the shape is not defined or not alone in its file, or another one depends on it. Or capture would
            refuse the files as they are, or the file cannot be changed.
    """
    ids = file.shapes.ids
    path = _own_file(file.path, file.shapes, shape_id)
    _require_readable(file.shapes)
    registered = tuple(live_ids)
    _require_allowed(file, lacking(registered, frozenset(ids)))
    gone = lacking(registered, frozenset(ids) - {shape_id})
    after = file.parse({path: None})
    allowed = gone if len(gone) > after.allow_removing else frozenset()
    line = f"allow_removing: {len(allowed)}\n" if allowed else ""
    file.write(path, f"{line}shapes: []\n".encode() if allowed or path == file.path else None)
    return path, allowed


def _own_file(path: Path, shapes: ShapesFile, shape_id: str) -> Path:
    """The file at ``path`` with only this shape; raises ``ConfigError``."""
    require_defined(path, shape_id, shapes.ids)
    entries = list(zip(shapes.ids, shapes.places, strict=True))
    places = [place for each, place in entries if each == shape_id]
    files = {place.file for place in places}
    if sum(place.file in files for _, place in entries) > 1:
        where = " and ".join(f"{place.file} line {place.line}" for place in places)
        raise ConfigError(
            f"shape {shape_id!r} has no file of its own: it is in {where}. Delete it there with an editor, and capture "
            "removes it; nothing was changed"
        )
    return Path(*files)


def lacking(live_ids: Iterable[Set[str]], left: Set[str | None]) -> Set[str]:
    """The live shapes that a file with those ``left`` lacks, if they are so many that it must be allowed; else none."""
    missing = [(ids - left, len(ids)) for ids in live_ids]
    return max((gone for gone, live in missing if must_be_allowed(len(gone), live)), key=len, default=frozenset())


def _require_allowed(file: ShapesEdit, gone: Set[str]) -> None:
    """Raise ``ConfigError`` if the file already lacks too many shapes: it may have been truncated."""
    if len(gone) > file.shapes.allow_removing:
        raise ConfigError(
            f"{file.path} lacks more than half of the live shapes already, so capture refuses it: "
            f"{listed(sorted(gone), most=10)}. Complete it; or, if they are to be removed, add the line "
            f"'allow_removing: {len(gone)}' {'to one of its files' if file.path.is_dir() else 'to it'}"
        )


def require_defined(path: Path, shape_id: str, ids: Sequence[str | None]) -> None:
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
    """Print the lines and ask; without a terminal, raise ``ConfigError``, which begins with the ``fact``."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{fact}; without a terminal, confirm it with --yes")
    print(*lines, sep="\n")
    return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


def _wait(registry: RegistryReader, shape_id: str, timeout_s: float) -> int:
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
