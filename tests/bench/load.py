"""The events of a steady state, as text: transactions over many shapes, and the flushes that follow them."""

from collections.abc import Iterator
from dataclasses import dataclass

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from tests.support.sample_source import SampleSource

SOURCE = "7301234567890123456/1/shapes"
_FIRST_LSN = 1_000_000
_STEP = 500


@dataclass(frozen=True, slots=True)
class Load:
    """Transaction n is one fragment at LSN ``1,000,000 + 500·n`` for ``each`` shapes, each with its one operation.

    They are ``shape-i`` for i = (each·n + j)·7919 mod ``shapes``. The first ``flushes`` of them flush it, if n is a
    multiple of ``every``.
    """

    shapes: int = 100_000
    each: int = 3
    flushes: int = 3
    every: int = 1

    @property
    def events_per_transaction(self) -> float:
        return 1 + self.flushes / self.every

    @property
    def flush_share(self) -> float:
        return self.flushes / self.every / self.events_per_transaction

    @staticmethod
    def lsn(number: int) -> int:
        """The commit LSN of a transaction."""
        return _FIRST_LSN + _STEP * number

    def transactions(self, first: int, count: int) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """The fragment of each transaction, and its flushes with their shapes."""
        template = _template(self.each)
        for number in range(first, first + count):
            lsn = self.lsn(number)
            shapes = [f"shape-{(self.each * number + j) * 7919 % self.shapes}" for j in range(self.each)]
            fragment = template % (lsn, lsn, lsn - _STEP, lsn, *(part for shape in shapes for part in (shape, lsn)))
            if number == 0:
                fragment = fragment.replace('"start":false', '"start":true')
            flushing = shapes[: self.flushes] if number % self.every == 0 else []
            yield fragment, [(shape, _FLUSH % (shape, lsn)) for shape in flushing]


def _template(shapes: int) -> str:
    """A fragment, with ``%s`` for its numbers and names."""
    source = SampleSource(SOURCE)
    source.transaction(111)
    event = source.transaction(222, *(f"shape {n}" for n in range(shapes)))
    text = event.to_json().replace("246", "0").replace("222", "%s").replace("111", "%s")
    for number in range(shapes):
        text = text.replace(f'"shape {number}"', '"%s"')
    filled = text.replace('"%s"', '"s"').replace("%s", "222", 2).replace("%s", "111", 1).replace("%s", "222")
    assert FragmentEvent.from_json(filled)
    return text


_FLUSH = SampleSource(SOURCE).flushed("shape 0", 222).to_json().replace("shape 0", "%s").replace("222", "%s")
assert FlushNotification.from_json(_FLUSH % ("s", 222))
