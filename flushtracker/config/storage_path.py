"""Where a path or a URI leads, to compare the paths of a job: two spellings of one folder are equal.

URIs are those with ``://``, and ``file:``; anything else is a local path, relative to the current directory. Symbolic
links are resolved.
"""

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

if TYPE_CHECKING:
    # Executors import this module and do not have YAML.
    from flushtracker.config.strict_yaml import YamlMapping

Place: TypeAlias = tuple[str, ...]
"""The kind of storage, its bucket or host, and the names of the folders from its root down."""

_URI: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/]*)(?P<path>.*)", re.IGNORECASE | re.DOTALL)
_FILE: Final = re.compile(r"file:(?://(?:localhost)?(?=/))?", re.IGNORECASE)
_SAME_STORAGE: Final = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs", "az", "azure", "adl"), "azure"),
}
"""Spark and deltalake have different schemes for the same storage."""


def place_of(path: str) -> Place:
    """Return the place of a path or URI; raises ``ValueError`` if it contains a NUL.

    >>> place_of("s3a://Bucket/a/./b//../c/")
    ('s3', 'bucket', 'a', 'c')
    >>> place_of("file:///data/acks") == place_of("/data/x/../acks/")
    True
    """
    if local := _FILE.match(path):
        return _local(unquote(path[local.end() :]))
    if uri := _URI.fullmatch(path):
        scheme = uri["scheme"].lower()
        storage = _SAME_STORAGE.get(scheme, scheme)
        # Azure has the container before an @, and az:// omits the account. Others have credentials there.
        names = uri["authority"].lower().split("@")
        host = names[0] if storage == "azure" else names[-1].partition(":")[0]
        return (storage, host, *_folders(uri["path"]))
    return _local(path)


def is_uri(path: str) -> bool:
    return bool(_FILE.match(path) or _URI.fullmatch(path))


def local_folder(path: str) -> str | None:
    """Return the absolute path of a place on this machine, ``None`` for other storage; raises as :func:`place_of`.

    >>> local_folder("file:///data/x/../acks/"), local_folder("s3://bucket/acks")
    ('/data/acks', None)
    """
    storage, _, *names = place_of(path)
    return "/" + "/".join(names) if storage == "file" else None


def is_inside(inner: Place, outer: Place) -> bool:
    """Whether ``inner`` is ``outer`` or a place below it."""
    return inner[: len(outer)] == outer


def require_distinct_paths(root: "YamlMapping", keys: Iterable[tuple[str, str]]) -> None:
    """Check that no two paths at these keys, each ``(section, key)``, are equal or nested.

    Two streams in one folder would read each other's events, compaction deletes files in a table's folder that are not
    part of it, and ``--recover`` moves the checkpoint's folder with everything in it.

    Raises:
        ConfigError: naming both keys.
    """
    taken: dict[str, Place] = {}
    for section, key in keys:
        mapping = root.mapping(section)
        place = _place_at(mapping, key)
        for other, other_place in taken.items():
            if place == other_place:
                raise mapping.error(key, f"is the same as {other}; each needs its own")
            if is_inside(place, other_place):
                raise mapping.error(key, f"is inside {other}; each needs a folder of its own")
            if is_inside(other_place, place):
                raise mapping.error(key, f"contains {other}; each needs a folder of its own")
        taken[mapping.label(key)] = place


def _place_at(mapping: "YamlMapping", key: str) -> Place:
    try:
        return place_of(mapping.text(key).value)
    except ValueError:  # a file: URI can spell a NUL, which no path may contain
        raise mapping.wrong(key, "a path or a URI that leads to a folder") from None


def _local(path: str) -> Place:
    return ("file", "", *_folders(os.path.realpath(path)))


def _folders(path: str) -> list[str]:
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in {"", "."}:
            names.append(name)
    return names
