"""``RoutedFragment``: a shape's part of a fragment, as the router returns it."""

from flushtracker.wal.changes import Commit, LogItem, TransactionFragment
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER
from flushtracker.wal.value import value


@value(frozen=True, slots=True)
class RoutedFragment:
    """One shape's part of a fragment.

    ``change_count`` counts the table's changes, so a split update counts as one, with two items. ``removed`` means that
    the shape took part and was then removed: the fragment's metadata names it, but it is sent nothing. ``schema`` is
    the digest of the shape's columns and types, if its table's binding is known.
    """

    shape_id: str
    xid: int
    lsn: int
    last_log_offset: LogOffset
    has_begin: bool
    commit: Commit | None
    items: tuple[LogItem, ...] = ()
    change_count: int = 0
    removed: bool = False
    incarnation: int = 1
    writer: str = LOG_WRITER
    schema: str | None = None

    @property
    def last_offset(self) -> LogOffset | None:
        """The offset of the last item, ``None`` without items; past ``last_log_offset`` if the last update is split."""
        return self.items[-1].offset if self.items else None


@value(frozen=True, slots=True)
class RoutedFragments:
    """The parts of ``fragment`` by shape, and the ``rest`` of the given fragment, to be routed next."""

    fragment: TransactionFragment
    parts: tuple[RoutedFragment, ...]
    rest: TransactionFragment | None = None
