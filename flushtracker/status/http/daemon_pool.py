"""``DaemonPool``: threads for answers that do not delay the end of the process.

Python joins the threads of a ``ThreadPoolExecutor`` when the interpreter exits, daemons or not, so a read that waits
for a storage would keep a finished program alive.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Semaphore, Thread
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonPool(Executor):
    """Runs calls in up to ``threads`` threads, whose names begin with ``name``; :meth:`submit` is for one thread."""

    def __init__(self, threads: int, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._limit, self._name = threads, name
        self._threads = list[Thread]()
        self._idle = Semaphore(0)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = Future[T]()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        # One that is idle has open what it has read last, so another one is started only if none is.
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._limit:
            thread = Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002  as ``Executor``
        """Start nothing more, without waiting."""
        with suppress(Empty):
            while waiting := self._calls.get_nowait():
                waiting[0].cancel()
        for _ in self._threads:
            self._calls.put(None)

    def _run(self) -> None:
        while found := self._next():
            future, call = found
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  it is passed to the caller that waits for the result
                future.set_exception(error)
            # A result may be a file, whose disk space is freed with its last reference.
            del found, future, call

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with suppress(Empty):
            return self._calls.get_nowait()
        self._idle.release()
        return self._calls.get()
