"""``DaemonPool``: threads whose end nobody waits for."""

from threading import Event, get_ident

from flushtracker.status.http.daemon_pool import DaemonPool
from tests.support.waiting import wait_until


def test_calls_that_follow_each_other_are_made_in_one_thread() -> None:
    """A thread keeps the tables open that it has read; another one would have to open them, too."""
    pool, started, go_on = DaemonPool(3, "test"), Event(), Event()

    def wait() -> int:
        started.set()
        go_on.wait(60)
        return get_ident()

    threads = set[int]()
    for _ in range(9):
        threads.add(pool.submit(get_ident).result(60))
        # It is idle shortly after its result is there.
        wait_until(lambda: pool._idle._value, "the thread is idle", 60)
    assert len(threads) == 1
    waiting = pool.submit(wait)
    assert started.wait(60)
    assert pool.submit(get_ident).result(60) != 0, "a call that waits keeps no other"
    go_on.set()
    assert waiting.result(60)
    pool.shutdown()
