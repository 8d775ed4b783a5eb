"""The chain of fragments: what is next, what is resent, and what is a gap."""

from random import Random

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from flushtracker.errors import GapError, StateError
from flushtracker.tracking.chain_links import ChainLinks, Link
from flushtracker.tracking.fragment_chain import FragmentChain
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.lsn import format_lsn
from tests.support.plain_chain import PlainChain, random_links
from tests.support.random_wal import RANDOMS


def link(follows: tuple[int, int], last: tuple[int, int], *, start: bool = False, commit: bool = True) -> Link:
    return Link(LogOffset(*follows), LogOffset(*last), start, commit, "fragments/7.jsonl:3")


def chain_at(cursor: tuple[int, int]) -> FragmentChain:
    return FragmentChain("7301/1/shapes", LogOffset(*cursor), LogOffset(*cursor))


def test_a_resent_commit_alone_does_not_take_back_the_last_commit() -> None:
    """A batch may end within a resend; a driver that starts then acknowledges no further than the last commit here."""
    chain = chain_at((300, 6))
    chain.extend(ChainLinks.of([link((99, 0), (200, 4), start=True)]))
    assert chain.last_seen_offset == LogOffset(300, 6)


def test_a_gap_moves_nothing() -> None:
    """The error has both places, the source and both offsets; the state is as before the batch."""
    chain = FragmentChain("7301/1/shapes", LogOffset.last_of(300), LogOffset(300, 6))
    message = (
        r"^fragments/7\.jsonl:3: fragment 0/1F4\+0 of source 7301/1/shapes follows 0/190\+2, but the chain ends at "
        r"transaction 0/15E, read at fragments/7\.jsonl:3; the fragments in between are missing, and no ack passes the "
        r"gap$"
    )
    with pytest.raises(GapError, match=message):
        chain.extend(ChainLinks.of([link((300, 6), (350, 0)), link((400, 2), (500, 0))]))
    assert (chain.stream_cursor, chain.last_seen_offset) == (LogOffset.last_of(300), LogOffset(300, 6))


def test_a_gap_between_two_partitions_names_both() -> None:
    """They are read in no common order, so it may not be a gap; the state remembers the partition."""
    chain = FragmentChain("7301/1/shapes")
    chain.extend(
        ChainLinks.of([link((99, 0), (300, 4), start=True)._replace(place="fragments partition 0 Kafka offset 7")])
    )
    chain = FragmentChain.unpack(chain.source, chain.pack())
    with pytest.raises(GapError) as caught:
        chain.extend(ChainLinks.of([link((400, 2), (500, 0))._replace(place="fragments partition 1 Kafka offset 3")]))
    assert "ends at transaction 0/12C, read at fragments partition 0 Kafka offset 7; " in str(caught.value)
    assert "in two partitions, fragments partition 0 and fragments partition 1, so their order is undefined" in str(
        caught.value
    )


@pytest.mark.parametrize(("follows", "last"), [((99, 0), (200, 4)), ((99, 0), (300, 4)), ((200, 4), (300, 2))])
def test_a_gap_names_the_fragment_that_moved_the_cursor(follows: tuple[int, int], last: tuple[int, int]) -> None:
    """Fragments read again elsewhere, up to the cursor or before it, do not change where the chain ends."""
    chain = FragmentChain("7301/1/shapes")
    chain.extend(ChainLinks.of([link((99, 0), (300, 4), start=True)._replace(place="1.jsonl")]))
    chain.extend(ChainLinks.of([link(follows, last)._replace(place="2.jsonl")]))
    with pytest.raises(GapError, match=r"^3\.jsonl: .* the chain ends at transaction 0/12C, read at 1\.jsonl; "):
        chain.extend(ChainLinks.of([link((400, 2), (500, 0))._replace(place="3.jsonl")]))


@pytest.mark.parametrize(
    ("read_at", "place"),
    [
        ("", "t partition 1 Kafka offset 3"),
        ("1.jsonl", "2.jsonl"),
        ("t partition 1 Kafka offset 2", "t partition 1 Kafka offset 3"),
        ("1.jsonl", "t partition 1 Kafka offset 3"),
        ("t partition 1 Kafka offset 3", "1.jsonl"),
    ],
)
def test_a_gap_within_one_partition_names_no_other(read_at: str, place: str) -> None:
    """Nor does one in files, or one after an ack, where nothing was read yet."""
    chain = FragmentChain("7301/1/shapes", LogOffset.last_of(300), place=read_at)
    with pytest.raises(GapError) as caught:
        chain.extend(ChainLinks.of([link((400, 2), (500, 0))._replace(place=place)]))
    assert str(caught.value) == (
        f"{place}: fragment 0/1F4+0 of source 7301/1/shapes follows 0/190+2, but the chain ends at transaction 0/12C"
        f"{f', read at {read_at}' if read_at else ''}; the fragments in between are missing, and no ack passes the gap"
    )


def test_a_new_chain_begins_with_a_start() -> None:
    """With no cursor, the least fragment must be a start; a later start does not show what came before it."""
    with pytest.raises(GapError, match=r"the first fragment of source 7301/1/shapes follows 0/63\+0 and is not marked"):
        FragmentChain("7301/1/shapes").extend(
            ChainLinks.of([link((99, 0), (200, 4)), link((200, 4), (300, 0), start=True)])
        )
    for start, other in (((200, 2), (200, 4)), ((200, 4), (200, 2))):
        chain = FragmentChain("7301/1/shapes")
        links = [link((99, 0), start, start=True, commit=start > other), link((99, 0), other, commit=other > start)]
        chain.extend(ChainLinks.of(reversed(links)))
        assert chain.stream_cursor == LogOffset.last_of(200)


def test_a_broken_chain_stays_broken() -> None:
    """Neither the missing fragment nor a start mends it: the groups of its shapes have read past the gap."""
    chain = chain_at((300, 6))
    chain.extend_or_break(ChainLinks.of([link((400, 0), (500, 0))]))
    gap = chain.gap
    assert gap is not None
    assert "follows 0/190+0, but the chain ends at 0/12C+6" in gap
    chain.extend_or_break(ChainLinks.of([link((99, 0), (400, 0), start=True), link((400, 0), (500, 0))]))
    assert (chain.gap, chain.stream_cursor, chain.last_seen_offset) == (gap, LogOffset(300, 6), LogOffset(300, 6))
    assert vars(FragmentChain.unpack(chain.source, chain.pack())) == vars(chain)


@pytest.mark.parametrize("chain", [FragmentChain("s"), FragmentChain("s", LogOffset.last_of(7)), chain_at((300, 6))])
def test_unpack_reads_what_pack_writes(chain: FragmentChain) -> None:
    """The state survives a round trip through bytes."""
    unpacked = FragmentChain.unpack(chain.source, chain.pack())
    assert vars(unpacked) == vars(chain)


@pytest.mark.parametrize(("packed", "version"), [(b"\x02[null,null]", "02"), (b"", "none")])
def test_bytes_of_another_version_are_refused(packed: bytes, version: str) -> None:
    """The message has both versions and says what to do."""
    with pytest.raises(StateError, match=rf"state has version {version}, this job reads version 01; use the release"):
        FragmentChain.unpack("7301/1/shapes", packed)


@given(RANDOMS, st.integers(2, 40), st.sampled_from([None, LogOffset(50, 0)]))
def test_chain_equals_its_plain_definition(rng: Random, count: int, cursor: LogOffset | None) -> None:
    """After each batch the same cursor, last commit and place; a gap at the same link, behind the same cursor."""
    chain, plain = FragmentChain("7301/1/shapes", cursor), PlainChain(cursor)
    for links in random_links(rng, count):
        note(f"links {links}")
        plain.extend(links)
        if plain.failure is None:
            chain.extend(ChainLinks.of(links))
        else:
            with pytest.raises(GapError) as caught:
                chain.extend(ChainLinks.of(links))
            link, end = plain.failure
            assert str(caught.value).startswith(f"{link.place}: ")
            assert end is None or f"the chain ends at {described(end)}" in str(caught.value)
        assert (chain.stream_cursor, chain.last_seen_offset) == (plain.cursor, plain.last_seen)
        assert (chain.place, chain.operations) == (plain.place, plain.operations)
        if plain.failure is not None:
            return


def described(end: LogOffset) -> str:
    return f"transaction {format_lsn(end.tx_offset)}" if end.op_offset == OP_INFINITY else str(end)
