"""``Poller``: polls the tables in its own thread, once for all clients, and wakes those whose shape has changed.

A poll opens the newest version of both tables, and finds the shapes that clients request. Its result, a ``TableView``,
replaces the previous one as a whole, on the event loop: a failed poll changes nothing, so the next one finds
everything. During a round (``rounds``), clients are shown shapes as they were when it began.

- *Fresh*: a request that must not be behind what its client has seen waits for a poll that begins after it.
- *Bounded*: after ``LOOK_S`` a poll leaves the rest to the next one, and it skips a shape that it cannot read. So the
  other shapes are served, however much there is to find. If a file does not answer, the poll abandons the query with
  its tables, and only shapes with rows in that file wait (``stalled_files``).
- *Old*: without a poll within ``MOST_AGE_S`` nothing is answered, because the last one may be arbitrarily outdated.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from flushtracker.errors import FlushtrackerError, ShapeEndedError
from flushtracker.serve.open_tables import OpenTables
from flushtracker.serve.refusals import RefusalError, UnavailableError
from flushtracker.serve.rounds import Rounds, Waiter
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.shape_look import LOOK_S, ShapeLook
from flushtracker.serve.stalled_files import StalledFiles
from flushtracker.serve.table_view import Outcome, ShapeProblem, TableView, as_before, is_update, shape_ids_of

logger = logging.getLogger(__name__)

MOST_AGE_S: Final = 30.0
_REOPEN_S: Final = 30.0
"""How often the tables are reopened, to find out whether they were replaced."""

_FRESH_S: Final = 10.0
"""How long a request waits for a poll."""

FORGET_S: Final = 120.0
"""A shape is polled for this long after the last request for it. What else is kept for those who ask, too."""

_LEAST_S: Final = 0.05
"""The minimum interval between polls, even if requests wait for one."""

_STOPS: Final = "the server stops"
_LOG_AGAIN_S: Final = 60.0


class Poller:
    """Polls every ``poll_s``, and at once if a request waits for a poll; ``open_tables`` reopens the tables.

    ``source``: whose shapes are served; ``None`` for any. ``published`` is called with each view, on the event loop.
    """

    def __init__(
        self,
        open_tables: Callable[[], OpenTables],
        poll_s: float,
        source: str | None = None,
        now_s: Callable[[], float] = time.monotonic,
        published: Callable[[TableView], None] = lambda _: None,
    ) -> None:
        self._open = open_tables
        self._published = published
        self._source = source
        self._poll_s = poll_s
        self._now_s = now_s
        self.view = TableView()
        self.polls = self.failed_polls = 0
        self.problem: str | None = "the tables have not been looked at yet"
        self._wanted: dict[str, float] = {}
        self._fresh: list[tuple[float, asyncio.Future[None]]] = []
        self._changes: dict[tuple[str, bool], dict[Waiter, int]] = {}
        """The waiters for a shape's changes after a transaction; if true, also for changes of its cut."""
        self._last: set[Waiter] = set()
        """Those that a round wakes after the others."""
        self.rounds = Rounds(self._concerned, now_s)
        self._known: Mapping[str, Outcome] = {}
        """The shapes when the last round began, as which they are shown until it ends."""
        self._changed_ids: dict[str, None] = {}
        """The shapes whose waiters the next round wakes in any case, in order."""
        self._is_looking = False
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._logged_s = -_LOG_AGAIN_S
        self._stalled_files = StalledFiles()
        self._is_usable = True
        """Whether the open tables are the poller's: a look that was left behind keeps them."""

    def start(self) -> None:
        """Start polling; called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wake all clients, and stop polling."""
        self._stopped = True
        self._wake.set()
        for waiter in [each for waiting in self._changes.values() for each in waiting]:
            if not waiter.done():
                waiter.set_result(None)
        for _, future in self._fresh:
            if not future.done():
                future.set_exception(UnavailableError(_STOPS))

    @property
    def age_s(self) -> float:
        """The time since the start of the last complete poll."""
        return self._now_s() - self.view.began_s

    @property
    def is_closed(self) -> bool:
        return self._stopped

    @property
    def is_busy(self) -> bool:
        """Whether it is looking at the tables, or waking clients; for any thread."""
        return self._is_looking or self.rounds.is_running

    @property
    def waiting(self) -> int:
        return sum(map(len, self._changes.values()))

    @property
    def polled_shapes(self) -> int:
        return len(self._wanted)

    async def current(self, *, fresh: bool = False) -> TableView:
        """The last view, or one of a poll that begins from now on; raises ``UnavailableError``."""
        if fresh or not self.polls:
            await self._fresh_poll()
        if self.age_s > MOST_AGE_S:
            raise UnavailableError(f"the last look at the tables was {min(self.age_s, 1e6):.0f} s ago", 5)
        return self.view

    async def shape(self, shape_id: str, *, fresh: bool = False, newest: bool = False) -> SeenShape:
        """A shape of the registry, as it is shown; with ``newest``, as the last poll has found it.

        Raises:
            RefusalError: the tables cannot be polled, or the shape has ended.
            FlushtrackerError: why the shape cannot be read, as ``ShapeFinder.seen``.
        """
        self._wanted[shape_id] = self._now_s()
        view = await self.current(fresh=fresh)
        found = view.shapes.get(shape_id) if fresh or newest else self.shown(shape_id)
        if found is None or (isinstance(found, ShapeProblem) and found.is_final and not fresh):
            view = await self.current(fresh=True)
            found = view.shapes.get(shape_id)
        if isinstance(found, ShapeProblem):
            if issubclass(found.kind, ShapeEndedError):
                raise RefusalError(410, view.end_reason(shape_id, self._source))
            raise found.error()
        if found is None:
            raise UnavailableError("the shape was not looked at in time")
        return found

    def changed(self, shape_id: str, after_tx: int = -1, *, or_cut: bool = False, is_last: bool = False) -> Waiter:
        """Done when the shape has changed since the last view, or the poller is closed; call :meth:`drop` in the end.

        Transactions up to ``after_tx`` are no change. With ``or_cut``, another cut is one. A waiter that ``is_last`` is
        woken after the others, and not by :meth:`wake`.
        """
        future = asyncio.get_running_loop().create_future()
        self._wanted[shape_id] = self._now_s()
        self._changes.setdefault((shape_id, or_cut), {})[future] = after_tx
        if is_last:
            self._last.add(future)
        if self._stopped:
            future.set_result(None)
        return future

    def drop(self, shape_id: str, future: Waiter, *, or_cut: bool = False) -> None:
        self.rounds.resumed(future)
        self._last.discard(future)
        waiting = self._changes.get((shape_id, or_cut))
        if waiting is not None:
            waiting.pop(future, None)
            if not waiting:
                del self._changes[shape_id, or_cut]

    def wake(self, shape_ids: Collection[str]) -> int:
        """Wake those that wait for changes of these shapes, by the next round; return how many wait now.

        Those that are last wait for a look.
        """
        self._changed_ids.update(dict.fromkeys(shape_ids))
        waiting = sum(len(self._changes.get((each, or_cut), ())) for each in {*shape_ids} for or_cut in (False, True))
        self.rounds.begin()
        return waiting

    def shown(self, shape_id: str) -> Outcome | None:
        """The shape as clients are shown it; ``None`` if the last poll has not found it."""
        found = self.view.shapes.get(shape_id)
        return found if found is None or self.rounds.holding is None else as_before(self._known.get(shape_id), found)

    def _concerned(self) -> list[Waiter]:
        """Whom a round wakes that begins now."""
        before, self._known = self._known, self.view.shapes
        changed, self._changed_ids = self._changed_ids, {}
        places = [(shape_id, or_cut) for shape_id in changed for or_cut in (False, True)]
        found = [waiter for place in places for waiter in self._changes.get(place, ()) if waiter not in self._last]
        if before is self._known:
            return found
        last = list[Waiter]()
        for (shape_id, or_cut), waiting in self._changes.items():
            known, now = before.get(shape_id), self._known.get(shape_id)
            if now is None:
                continue
            for waiter, tx in waiting.items():
                is_last = waiter in self._last
                if (is_last or shape_id not in changed) and is_update(known, now, tx, or_cut=or_cut):
                    (last if is_last else found).append(waiter)
        return found + last

    async def _fresh_poll(self) -> None:
        if self._stopped:
            raise UnavailableError(_STOPS)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = self._now_s(), future
        self._fresh.append(entry)
        self._wake.set()
        try:
            await asyncio.wait_for(asyncio.shield(future), _FRESH_S)
        except asyncio.TimeoutError:
            raise UnavailableError("the tables could not be looked at in time") from None
        finally:
            if entry in self._fresh:
                self._fresh.remove(entry)

    # In the poller's thread.

    def _run(self) -> None:
        tables: OpenTables | None = None
        opened_s = next_s = 0.0
        began_s = -_LEAST_S
        while not self._stopped:
            self._wake.wait(max(next_s - self._now_s(), 0))
            # Requests that force a poll share one, however many there are.
            time.sleep(min(max(began_s + _LEAST_S - self._now_s(), 0), _LEAST_S))
            self._wake.clear()
            began_s = self._now_s()
            next_s = began_s + self._poll_s
            self._is_looking = True
            try:
                if tables is None or began_s - opened_s > _REOPEN_S:
                    tables, opened_s = self._reopened(tables), began_s
                view = self._poll(tables, began_s)
            except BaseException as error:  # noqa: BLE001  a thread that ends would leave every client with the past
                tables = None
                self._call(self._failed, began_s, error)
            else:
                tables = tables if self._is_usable else None
                self._call(self._publish, view)
            finally:
                self._is_looking = False

    def _reopened(self, tables: OpenTables | None) -> OpenTables:
        """The newly opened tables, or the open ones if they are the same."""
        found = self._open()
        is_same = tables is not None and tables.table_id == found.table_id and tables.version <= found.version
        return tables if is_same and tables is not None else found

    def _poll(self, tables: OpenTables, began_s: float) -> TableView:
        before, self._is_usable = self.view, True
        wanted = frozenset(self._wanted)
        registry = tables.refresh()
        # A log that has replaced another one may have the same version, and the registry is the same object for both.
        is_same_log = (tables.table_id, tables.version) == (before.table_id, before.version)
        is_new = registry is not before.registry or not is_same_log
        shapes = {} if is_new else {name: found for name, found in before.shapes.items() if name in wanted}
        # Shapes skipped by the previous poll come first.
        missing = sorted(wanted - shapes.keys(), key=before.shapes.__contains__)
        self._stalled_files.ask_again(tables, began_s)
        answered = [name for name in missing if not self._stalled_files.may_have(name)]
        version, table_id = tables.version, tables.table_id
        if answered:
            found, self._is_usable = self._look(tables, answered, began_s)
            shapes |= found
        if self._is_usable:
            tables.forget(wanted)
        shape_ids = before.shape_ids if registry is before.registry else shape_ids_of(registry)
        return TableView(registry, shape_ids, version, shapes, began_s, table_id)

    def _look(self, tables: OpenTables, names: Sequence[str], began_s: float) -> tuple[Mapping[str, Outcome], bool]:
        """What is found of these shapes, and whether the tables can be used again."""
        look = ShapeLook(tables, names, began_s, self._now_s)
        while not look.wait(LOOK_S):
            if self._stalled_files.find(tables, look.looked_up, self._now_s()):
                return look.leave(), False
        return look.found, True

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None and not self._stopped:
            try:
                self._loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:  # The loop is closed.
                self._stopped = True

    # On the event loop.

    def _publish(self, view: TableView) -> None:
        self.view = view
        self.polls += 1
        if self.problem is not None:
            logger.info("tables are looked at version=%s shapes=%s", view.version, len(view.shape_ids))
        self.problem = None
        self._resolve_fresh(view.began_s)
        self.rounds.begin()
        limit_s, waited = self._now_s() - FORGET_S, {shape_id for shape_id, _ in self._changes}
        for shape_id in [name for name, at_s in self._wanted.items() if at_s < limit_s and name not in waited]:
            del self._wanted[shape_id]
        self._published(view)

    def _failed(self, began_s: float, error: BaseException) -> None:
        self.failed_polls += 1
        known = isinstance(error, FlushtrackerError)
        self.problem = str(error) if known else type(error).__name__
        if self._now_s() - self._logged_s >= _LOG_AGAIN_S:
            self._logged_s = self._now_s()
            logger.warning("tables cannot be looked at reason=%s", self.problem, exc_info=None if known else error)
        self._resolve_fresh(began_s, "the tables cannot be looked at now")

    def _resolve_fresh(self, began_s: float, problem: str | None = None) -> None:
        for asked_s, future in self._fresh:
            if asked_s <= began_s and not future.done():
                if problem is None:
                    future.set_result(None)
                else:
                    future.set_exception(UnavailableError(problem))
