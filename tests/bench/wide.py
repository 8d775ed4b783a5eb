"""Rows of 200 columns for shapes of a few: the cost of a change if all columns are decoded, and if only those are."""

from collections.abc import Iterable, Iterator
from functools import partial

from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.wal.changes import Relation
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.pgoutput import RelationMessage, decode
from tests.bench import wal
from tests.bench.measure import Table, medians_us

CHANGES_PER_TRANSACTION = 20
SHAPES: list[tuple[str, str | None, list[str] | None]] = [
    ("all columns", None, None),
    ("the first 2", None, ["c0", "c1"]),
    ("the first and the last", None, ["c0", "c199"]),
    ("the first 2, where c100 = 'none'", "c100 = 'none'", ["c0", "c1"]),
]


def tables(*, quick: bool = False) -> Iterator[Table]:
    transactions, rounds = (2, 1) if quick else (20, 31)
    rows = []
    for operation, identity in (("insert", b"f"), ("update", b"f")):
        messages = wal.wide_transactions(transactions, CHANGES_PER_TRANSACTION, operation)
        for label, where, columns in SHAPES:
            chosen = None if columns is None else tuple(columns)
            shape = ShapeDefinition("wide", ("public", "wide"), columns=chosen, where=where, primary_key=("c0",))
            # Each round needs a router of its own, because a router serves its stream once.
            runs = [partial(_run, messages, shape, identity, is_narrow=is_narrow) for is_narrow in (False, True)]
            before, after = medians_us(runs, transactions * CHANGES_PER_TRANSACTION, rounds)
            rows.append([f"{operation}, {label}", f"{before:.1f}", f"{after:.1f}", f"{after / before:.2f}"])
    yield Table(
        f"Decode, convert and route rows of {wal.WIDE_COLUMNS} columns, REPLICA IDENTITY FULL, for one shape; µs per "
        "change, which decodes all columns, or those that the shape reads",
        ["shape", "all", "those read", "ratio"],
        rows,
    )


def _run(messages: Iterable[bytes], shape: ShapeDefinition, identity: bytes, *, is_narrow: bool) -> None:
    router, converter = EventRouter([shape]), FragmentConverter()
    relation = _described(converter, identity)
    if is_narrow:
        converter.read_only(relation.relation_id, router.columns_read(relation.table))
    for message in messages:
        for fragment in converter.handle(decode(message)):
            router.route(fragment)


def _described(converter: FragmentConverter, identity: bytes) -> Relation:
    message = decode(wal.wide_relation_message(identity))
    converter.handle(message)
    if not isinstance(message, RelationMessage):
        raise TypeError(type(message))
    return message.relation
