"""The cache of the server's reads: within its limits, the least recently used entries are evicted first.

All entries are immutable: a page of a log goes from one offset to another, and a shape's rows are those after one
transaction. Whether that is the end may change, and is checked against the last poll when answering. For the event
loop's thread.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flushtracker.serve.body import Page, PageFile
from flushtracker.serve.handle import Handle
from flushtracker.serve.state_rows import StateRows

_ENTRY_BYTES: Final = 1_000
"""The overhead of an entry besides its data."""

MAX_CACHED_FILES: Final = 200
"""Open files of pages; rows may have as many more."""

_MOST_BOUNDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class PageKey:
    """A page of a log after ``tx``, for clients that started from an attempt; or of a tail, from ``tx`` on.

    ``block``: the last transaction and the number of transactions of a part of a tail's pages.
    """

    digest: str
    attempt: int
    tx: int
    is_tail: bool = False
    block: tuple[int, int] | None = None


class PageCache:
    """Pages of logs, by where they begin."""

    def __init__(self, memory_bytes: int, disk_bytes: int) -> None:
        self._memory_limit, self._disk_limit = memory_bytes, disk_bytes
        self._pages: OrderedDict[PageKey, Page] = OrderedDict()
        self.memory_bytes = 0
        self.disk_bytes = 0
        self._files: Counter[PageFile] = Counter()

    def __len__(self) -> int:
        return len(self._pages)

    def get(self, key: PageKey) -> Page | None:
        page = self._pages.get(key)
        if page is not None:
            self._pages.move_to_end(key)
        return page

    def add(self, key: PageKey, pages: Iterable[Page]) -> None:
        """Cache the consecutive pages of one read."""
        for page in pages:
            self._drop(key)
            self._pages[key] = page
            self._count(page, 1)
            if page.tx == key.tx:
                break
            key = PageKey(key.digest, key.attempt, page.tx)
        while self._is_over():
            self._drop(next(iter(self._pages)))

    def drop(self, key: PageKey) -> None:
        self._drop(key)

    def _is_over(self) -> bool:
        over = self.memory_bytes > self._memory_limit or self.disk_bytes > self._disk_limit
        return bool(self._pages) and (over or len(self._files) > MAX_CACHED_FILES)

    def _drop(self, key: PageKey) -> None:
        page = self._pages.pop(key, None)
        if page is not None:
            self._count(page, -1)

    def _count(self, page: Page, sign: int) -> None:
        self.memory_bytes += sign * (page.body.memory_bytes + _ENTRY_BYTES)
        file = page.body.file
        if file is None:
            return
        # A file takes disk space until the last of its pages is dropped.
        self.disk_bytes += file.length if self._files[file] == 0 else 0
        self._files[file] += sign
        file.is_kept = self._files[file] > 0
        if not file.is_kept:
            del self._files[file]
            self.disk_bytes -= file.length


class StateCache:
    """The rows of shapes for new clients, by handle and transaction, and the newest of each shape.

    The last used entry is kept even if it is larger than the limit. Clients fetch it page by page, and without it each
    page would be computed from the shape's beginning.
    """

    def __init__(self, disk_bytes: int, keep_s: float) -> None:
        self._limit, self._keep_s = disk_bytes, keep_s
        self._states: OrderedDict[tuple[str, int, int], tuple[StateRows, float, int]] = OrderedDict()
        self._newest: dict[str, tuple[str, int, int]] = {}
        self._least: OrderedDict[str, int] = OrderedDict()
        self.disk_bytes = 0

    def __len__(self) -> int:
        return len(self._states)

    def at(self, handle: Handle, tx: int) -> StateRows | None:
        found = self._states.get((handle.digest, handle.attempt, tx))
        if found is not None:
            self._states.move_to_end((handle.digest, handle.attempt, tx))
        return None if found is None else found[0]

    def newest(self, handle: Handle, now_s: float) -> StateRows | None:
        """The newest cached rows of a shape, if they are not too old for a new client.

        Any rows are a correct start, because the log continues from them. With old ones, the client only reads more of
        the log.
        """
        key = self._newest.get(handle.digest)
        found = None if key is None else self._states.get(key)
        if key is None or found is None or key[1] != handle.attempt or now_s - found[1] > self._keep_s:
            return None
        if not self.can_begin(found[0]):
            return None
        self._states.move_to_end(key)
        return found[0]

    def can_begin(self, state: StateRows) -> bool:
        """Whether the log can be continued from these rows, as far as is known."""
        return state.tx >= self._least.get(state.handle.digest, -1)

    def begin_after(self, handle: Handle, tx: int) -> None:
        """Note that no messages are sent for the transaction ``tx``: clients with earlier rows must start over."""
        self._least[handle.digest] = max(tx, self._least.get(handle.digest, -1))
        self._least.move_to_end(handle.digest)
        if len(self._least) > _MOST_BOUNDS:
            self._least.popitem(last=False)

    def add(self, state: StateRows, now_s: float) -> None:
        """Cache the rows available so far, or drop them if they are broken.

        Rows recomputed for an old offset are not given to new clients.
        """
        key = state.handle.digest, state.handle.attempt, state.tx
        found = self._states.get(key)
        if found is not None and found[0] is not state and (state.version < 0 or state.is_broken):
            return
        self._drop(key)
        if state.is_broken:
            return
        state.file.is_kept = True
        self._states[key] = state, now_s, state.disk_bytes
        self.disk_bytes += self._states[key][2]
        newest = self._newest.get(state.handle.digest)
        if state.version >= 0 and (newest is None or newest[1:] <= key[1:]):
            self._newest[state.handle.digest] = key
        while len(self._states) > 1 and (self.disk_bytes > self._limit or len(self._states) > MAX_CACHED_FILES):
            self._drop(next(iter(self._states)))

    def _drop(self, key: tuple[str, int, int]) -> None:
        found = self._states.pop(key, None)
        if found is not None:
            found[0].file.is_kept = False
            self.disk_bytes -= found[2]
            if self._newest.get(key[0]) == key:
                del self._newest[key[0]]
