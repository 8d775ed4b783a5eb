"""``KeyBinding``: a unique index that guarantees that no two rows of a table have the same key.

A log by key is correct only if the key is unique at every moment, even between two changes of one statement. That takes
a unique index on the table itself that is valid, immediate, complete (neither partial nor over expressions) and over
NOT NULL columns; :mod:`flushtracker.postgres.table_bindings` reads these. A shape keeps its key as long as one of them
has existed throughout; otherwise rows could have had the same key for a while.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

NEEDED: Final = "a primary key, or a valid unique index over NOT NULL columns, which is neither DEFERRABLE nor partial"


@dataclass(frozen=True, slots=True)
class KeyBinding:
    """``oid`` is the constraint's, which stays when its index is rebuilt concurrently, or the ``index``'s own.

    ``columns`` are in the index's order. ``version`` changes when the index is altered, disabled or enabled, and
    ``storage`` when it is rebuilt; 0 if unknown.
    """

    oid: int
    columns: tuple[str, ...]
    index: int = 0
    version: int = 0
    storage: int = 0
    is_primary: bool = False

    def has_lasted(self, since: "KeyBinding") -> bool:
        """Whether it is the same index as ``since`` and has been valid throughout."""
        if self.oid != since.oid and (not self.index or self.index != since.index):
            return False
        is_plain = self.oid == self.index
        # DROP INDEX CONCURRENTLY may leave it disabled, and REINDEX enables it again.
        was_rebuilt = since.version > 0 and self.version != since.version and self.storage != since.storage
        return not (is_plain and was_rebuilt)


def unproven_key(key: Collection[str], keys: Sequence[KeyBinding]) -> str | None:
    """Why several rows may have the same values in ``key``; ``None`` if one of ``keys`` excludes that."""
    if _proofs(key, keys):
        return None
    return f"({', '.join(key)}) may be that of several rows: it must have the columns of {NEEDED}, of the table itself"


def interrupted_key(
    key: Collection[str],
    bound: Sequence[KeyBinding],
    now: Sequence[KeyBinding],
    versions: tuple[Mapping[str, int], Mapping[str, int]],
) -> str | None:
    """Why rows may have shared a key for a while between two moments; ``None`` if that was impossible.

    ``versions`` are those of the table's columns by name, at both moments.
    """
    before, after = versions
    for proof in _proofs(key, now):
        for earlier in bound:
            if earlier.columns != proof.columns or not proof.has_lasted(earlier):
                continue
            # A column of a primary key is always NOT NULL.
            if proof.is_primary and proof.oid == earlier.oid:
                return None
            if all(before.get(name) == after.get(name) for name in proof.columns):
                return None
    return f"({', '.join(key)}) was dropped and created again, or altered: in between, rows could have the same key"


def _proofs(key: Collection[str], keys: Sequence[KeyBinding]) -> list[KeyBinding]:
    return [each for each in keys if set(each.columns) <= set(key)]
