"""``flushtracker add-shape``: adds a shape's file to the folder, and waits until capture has registered the shape."""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.yaml_tree import read_files
from flushtracker.errors import ConfigError, FlushtrackerError, ShapeError
from flushtracker.operate.shapes.catalog_check import catalog_errors
from flushtracker.operate.shapes.registry_reader import RegistryReader
from flushtracker.operate.shapes.remove_program import NOT_TAKEN
from flushtracker.operate.shapes.shapes_edit import ShapesEdit, edited, refuse
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.status.shapes_remedy import shell_word

_STDIN: Final = Path("-")
_MAX_NAME_LENGTH: Final = 200
"""Linux allows 255 bytes, and a temporary name is longer than the file's."""


def run(arguments: argparse.Namespace) -> int:
    """Add the shape's file to the folder, then wait until the registry has the shape."""
    config = load_capture_config(arguments.config)
    _require_folder(config.shapes, arguments.config)
    if arguments.file == _STDIN:
        name, content = Path("standard input"), sys.stdin.read().encode()
    else:
        ((name, content),) = _single_file(arguments.file).items()
    registry = RegistryReader(config.kafka, config.postgres.slot)
    check = (
        None if arguments.offline else partial(catalog_errors, config.postgres.connection, config.postgres.publication)
    )
    with edited(config.shapes) as file:
        shape_id, path = add(file, name, content, registry, check)
    # Printed after the edit: even if stdout fails, the file exists.
    print(f"added shape {shape_id} as {path}")
    if arguments.no_wait:
        return 0
    if not registry.await_addition({shape_id}, arguments.timeout):
        print("capture has registered it")
        return 0
    print(
        f"flushtracker add-shape: capture has not registered it within {arguments.timeout:g} s. Does it run with this "
        "folder? If its log has 'shape refused', 'shapes not applied' or 'shapes not added yet', it says why; "
        "otherwise capture applies the change when it starts",
        file=sys.stderr,
    )
    return NOT_TAKEN


def _require_folder(path: Path, config_file: Path) -> None:
    if path.is_dir():
        return
    read_files(path)
    folder = path.with_suffix(".d")
    words = shell_word(str(folder)), shell_word(str(path))
    raise ConfigError(
        f"{path} is a file, and add-shape adds files to a folder. To make one: "
        f"mkdir {words[0]} && mv {words[1]} {words[0]}; "
        f"then set 'shapes: {folder}' in {config_file}, and start capture again; nothing was changed"
    )


def _single_file(path: Path) -> dict[Path, bytes]:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file of a shape")
    return read_files(path)


def add(
    file: ShapesEdit,
    name: Path,
    content: bytes,
    registry: RegistryReader,
    check: Callable[[Sequence[ShapeDefinition]], Sequence[FlushtrackerError]] | None = None,
) -> tuple[str, Path]:
    """Add a shape's file, named ``name`` in messages, to the folder unchanged; return the shape's id, and the file.

    ``check`` returns the catalog's errors.

    Raises:
        ConfigError: it cannot be read, its id is or was in use, or the catalog does not allow it; nothing was changed.
        PostgresError: ``check`` could not be made; nothing was changed.
    """
    if name in file.files:
        raise ConfigError(f"{name} is in {file.path} already, and capture reads it there")
    after = file.parse({name: content})
    ids = [shape_id for shape_id, place in zip(after.ids, after.places, strict=True) if place.file == str(name)]
    refuse([fault.error for fault in after.faults if fault.shape_id in ids])
    added = [shape for shape in after.definitions if shape.id in ids]
    if len(added) != 1:
        raise ConfigError(
            f"{name} has {len(added)} shapes, and add-shape adds one, in a file of its own. To add more at once, copy "
            f"the file to {file.path}, after flushtracker check"
        )
    if after.allow_removing != file.shapes.allow_removing:
        raise ConfigError(f"{name} has allow_removing, which is not of a shape; take it out")
    (shape,) = added
    path = file.path / file_name(shape.id)
    if path in file.files:
        raise ConfigError(f"{path} is there already, with other shapes; rename it, which changes none of them")
    _require_unused(registry, shape.id)
    if check is not None:
        refuse(check(added))
    file.write(path, content)
    return shape.id, path


def file_name(shape_id: str) -> str:
    """The name of a shape's file: only letters, digits and ``_-.~%+``, and unique per id.

    >>> file_name("orders-eu"), file_name("../a/'b'"), file_name("é")
    ('orders-eu.yaml', '%2E.%2Fa%2F%27b%27.yaml', '%C3%A9.yaml')
    """
    name = quote(shape_id, safe="")
    if name.startswith("."):
        # A hidden file would be ignored.
        name = f"%2E{name[1:]}"
    if len(name) > _MAX_NAME_LENGTH:
        name = f"{name[: _MAX_NAME_LENGTH - 33]}+{sha256(shape_id.encode()).hexdigest()[:32]}"
    return f"{name}.yaml"


def _require_unused(registry: RegistryReader, shape_id: str) -> None:
    entry = registry.entry(shape_id)
    if entry is None:
        return
    state = "is still live" if entry.removed_at is None else f"was removed or ended at {entry.removed_at}"
    raise ShapeError(f"shape {shape_id!r} {state} in capture's registry; an id is never used twice, so use a new one")
