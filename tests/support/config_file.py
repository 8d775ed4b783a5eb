"""``flushtracker.yaml`` in tests: written from its keys, and changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def write_config(path: Path, settings: Mapping[str, Any]) -> Path:
    """Write the configuration; returns ``path``."""
    path.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
    return path


def change_config(path: Path, changes: Mapping[str, Any]) -> Path:
    """Change keys of the configuration, those of sections one by one; returns ``path``."""
    return write_config(path, merged(yaml.safe_load(path.read_text()), changes))


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the changes; a section that is in both has the keys of both."""
    found = dict(settings)
    for key, value in changes.items():
        old = found.get(key)
        found[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return found


def write_serve_config(
    path: Path, place: str, stores: Mapping[str, Any] | None = None, *, status: object = False, **serve: Any
) -> Path:
    """Write that of a server of ``place``'s log, on any free port unless ``serve`` has one; returns ``path``."""
    storage = {"path": place, **(stores or {})}
    return write_config(path, {"storage": storage, "serve": {"listen": "127.0.0.1:0", **serve}, "status": status})
