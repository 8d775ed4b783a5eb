"""MVCC snapshots: their text, and which transactions they contain."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.wal.mvcc_snapshot import MvccSnapshot

NEAR: Final = 200
XMINS = st.one_of(st.integers(1, 2**63), st.integers(1, 3).map(lambda n: n * 2**32 - NEAR // 2))


@st.composite
def snapshots(draw: st.DrawFn) -> MvccSnapshot:
    """Any snapshot of at most ``NEAR`` ids between ``xmin`` and ``xmax``; some span a multiple of 2**32."""
    xmin = draw(XMINS)
    xmax = xmin + draw(st.integers(0, NEAR))
    return MvccSnapshot(xmin, xmax, tuple(sorted(draw(st.sets(st.integers(xmin, xmax - 1))) if xmax > xmin else ())))


@given(snapshots(), st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-NEAR, NEAR)))
def test_a_snapshot_sees_what_had_ended_before_it(snapshot: MvccSnapshot, distance: int) -> None:
    """By definition, with 64-bit ids; the stream has the lower 32 bits of each."""
    xid = snapshot.xmax + distance
    had_ended = xid < snapshot.xmin or (xid < snapshot.xmax and xid not in snapshot.xip)
    assert snapshot.sees(xid % 2**32) == had_ended


@given(snapshots())
def test_parse_reads_what_str_writes(snapshot: MvccSnapshot) -> None:
    """They are inverses."""
    assert MvccSnapshot.parse(str(snapshot)) == snapshot


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3:4", "a:2:", "1:2:,", "1:2:1,", " 1:2:", "1:2:\n", "-1:2:", "١:2:"])
def test_parse_refuses_other_text(text: str) -> None:
    """Only PostgreSQL's own form is accepted; the message shows the text."""
    with pytest.raises(ValueError, match="is not of the form xmin:xmax:xid,xid"):
        MvccSnapshot.parse(text)


@pytest.mark.parametrize("text", ["0:1:", "3:2:", "5:9:4", "5:9:9", "5:9:7,6", "5:9:6,6", f"1:{2**64}:"])
def test_ids_that_no_server_writes_are_refused(text: str) -> None:
    """They ascend from ``xmin`` to below ``xmax``, so that a snapshot that was damaged in storage is not used."""
    with pytest.raises(ValueError, match="with ascending ids"):
        MvccSnapshot.parse(text)
