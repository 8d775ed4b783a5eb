"""``QuietServer``: what a server answers to capture while no transaction is open, and everything is visible."""

from collections.abc import Collection, Iterable

from flushtracker.shapes.unpublished import Unpublished
from flushtracker.wal.mvcc_snapshot import CatalogRow, MvccSnapshot


class UnmanagedPublication:
    """A publication that capture does not alter."""

    def publish_tables(self, oids: Collection[int]) -> dict[int, Unpublished]:
        return dict.fromkeys(oids, Unpublished("it is not managed", "ALTER PUBLICATION …"))

    def can_publish(self, oids: Collection[int]) -> bool:
        assert oids
        return False

    def retract_tables(self, used: Collection[int]) -> None:
        pass


class QuietServer(UnmanagedPublication):
    """The queries that most fakes of a server answer alike; the others are those of their tables."""

    def is_standby(self) -> bool:
        return False

    def snapshot(self) -> MvccSnapshot:
        return MvccSnapshot(1_000_000, 1_000_000)

    def in_progress(self) -> dict[int, bool]:
        return {}

    def next_xid(self) -> int:
        return 1_000_000

    def held_xmin(self) -> int:
        return self.slot_xmin()

    def slot_xmin(self) -> int:
        return 600

    def publication_rows(self, oids: Iterable[int]) -> dict[int, frozenset[CatalogRow]]:
        return dict.fromkeys(oids, frozenset({CatalogRow("publication 1", 500)}))

    def publication_path(self, oids: Iterable[int]) -> dict[int, frozenset[CatalogRow]]:
        return self.publication_rows(oids)

    def wal_end(self) -> int:
        raise AssertionError("this server has no WAL")

    def insert_lsn(self) -> int:
        return self.wal_end()

    def unnoticed_rows(self, _oids: Iterable[int]) -> dict[int, frozenset[int]]:
        return {}

    def writers(self, oids: Iterable[int]) -> dict[int, frozenset[int]]:
        return dict.fromkeys(oids, frozenset())

    def missing_relations(self, _oids: Collection[int]) -> frozenset[int]:
        return frozenset()

    def unreadable_tables(self, _oids: Collection[int]) -> tuple[int, ...]:
        return ()

    def flush_commits(self) -> None:
        pass

    def flush_wal(self, lsn: int) -> None:
        assert lsn >= 0

    def emit_transaction(self) -> None:
        raise AssertionError("no partition is lost here")
