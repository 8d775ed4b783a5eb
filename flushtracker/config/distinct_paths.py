"""No stream, table or checkpoint of a job may be another one, or inside it.

They would read each other's events, compaction deletes what is in the folder of a table and not part of it, and
``--recover`` moves the checkpoint's folder with everything in it.
"""

from collections.abc import Iterable

from flushtracker.config.storage_path import Place, is_inside, place_of
from flushtracker.config.strict_yaml import YamlMapping


def require_distinct_paths(root: YamlMapping, keys: Iterable[tuple[str, str]]) -> None:
    """Check the paths at these keys, each ``(section, key)``; raises ``ConfigError``."""
    taken: dict[str, Place] = {}
    for section, key in keys:
        mapping = root.mapping(section)
        place = _place(mapping, key)
        for other, other_place in taken.items():
            if place == other_place:
                raise mapping.error(key, f"is the same as {other}; each needs its own")
            if is_inside(place, other_place):
                raise mapping.error(key, f"is inside {other}; each needs a folder of its own")
            if is_inside(other_place, place):
                raise mapping.error(key, f"contains {other}; each needs a folder of its own")
        taken[f"{section}.{key}"] = place


def _place(mapping: YamlMapping, key: str) -> Place:
    try:
        return place_of(mapping.text(key).value)
    except ValueError:  # no path has a NUL, which a file: URI can spell
        raise mapping.wrong(key, "a path or a URI that leads to a folder") from None
