"""Where a path or a URI leads, to compare the paths of a job: two spellings of one folder are equal.

URIs are those with ``://``, and ``file:``; anything else is a local path, relative to the current directory. Symbolic
links are resolved.
"""

import os
import re
from collections.abc import Mapping
from typing import Final, TypeAlias
from urllib.parse import unquote

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


def nested_path(paths: Mapping[str, str]) -> tuple[str, str] | None:
    """The name of the first path that is equal to one before, inside it, or around it, and which; or that is none.

    Two streams in one folder would read each other's events. Compaction deletes files in a table's folder that are not
    part of it, and ``--recover`` moves the checkpoint's folder with everything in it.

    >>> nested_path({"acks": "data/acks", "log": "data/log", "checkpoint": "data/acks/x"})
    ('checkpoint', 'is inside acks; each needs a folder of its own')
    """
    taken: dict[str, Place] = {}
    for name, path in paths.items():
        try:
            place = place_of(path)
        except ValueError:  # a file: URI can spell a NUL, which no path may contain
            return name, "is not a path or a URI that leads to a folder"
        for other, other_place in taken.items():
            if place == other_place:
                return name, f"is the same as {other}; each needs its own"
            if is_inside(place, other_place) or is_inside(other_place, place):
                relation = "is inside" if is_inside(place, other_place) else "contains"
                return name, f"{relation} {other}; each needs a folder of its own"
        taken[name] = place
    return None


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
