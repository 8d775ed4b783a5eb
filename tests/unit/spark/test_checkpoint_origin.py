"""The file in a checkpoint that names its streams: damaged in any way, it is read as written or refused."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.spark.checkpoint_origin import parse_origin
from flushtracker.spark.recovery_plan import PartitionPlan, RecoveryPlan

_STREAMS: Final = {"format": "kafka", "fragments": "f (id)"}
_PLAN: Final = RecoveryPlan({0: PartitionPlan(100, {"7301/1/shapes": 40}), 1: PartitionPlan(50, {})})
_FIELDS: Final[dict[str, Any]] = {"version": 1, "streams": _STREAMS, "starts": _PLAN.to_json()}
_WRITTEN: Final = json.dumps(_FIELDS, indent=1).encode()


def test_the_file_is_read_as_written() -> None:
    """Streams and recovery plan."""
    assert parse_origin(_WRITTEN) == (_STREAMS, _PLAN)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe\x00", "can't decode"),
        (_WRITTEN[:40], "Expecting|Unterminated"),
        (b"[" * 100_000, "not what this program writes"),
        (b"[]", "a version before 0.1.0 wrote it"),
        (b"7", "not what this program writes"),
        (b"{}", "a version before 0.1.0 wrote it"),
        (json.dumps({"v": 1, "streams": _STREAMS, "starts": {}}).encode(), "^a version before 0.1.0 wrote it$"),
        (json.dumps(_FIELDS | {"version": 2}).encode(), "it has version 2, but this program reads 1"),
        (json.dumps(_FIELDS | {"streams": 5}).encode(), "not what this program writes"),
        (json.dumps(_FIELDS | {"streams": {"format": None}}).encode(), "something that is not text"),
        (json.dumps(_FIELDS | {"starts": None}).encode(), "not what this program writes"),
        (json.dumps(_FIELDS | {"starts": {"x": {"end": 1, "sources": {}}}}).encode(), "invalid literal"),
        (
            json.dumps(_FIELDS | {"starts": {"0": {"end": "1", "sources": {}}}}).encode(),
            "a Kafka offset that is not an integer",
        ),
        (json.dumps(_FIELDS | {"starts": {"0": {"end": 1, "sources": []}}}).encode(), "not what this program writes"),
        (json.dumps(_FIELDS | {"starts": {"0": {"end": 1, "sources": {"a": -1}}}}).encode(), "a Kafka offset that is"),
    ],
)
def test_a_damaged_file_is_refused(content: bytes, message: str) -> None:
    """Every damage is a ``ValueError`` with a reason, whatever the JSON parser makes of it."""
    with pytest.raises(ValueError, match=message):
        parse_origin(content)


@given(st.data())
def test_random_damage_is_refused_or_leaves_a_plan(data: st.DataObject) -> None:
    """Bytes replaced, removed or inserted, and subtrees exchanged: nothing but ``ValueError``."""
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
    if data.draw(st.booleans()):
        key = data.draw(st.sampled_from(["version", "streams", "starts"]))
        content = json.dumps(_FIELDS | {key: data.draw(json_values)}).encode()
    else:
        at, width = data.draw(st.integers(0, len(_WRITTEN))), data.draw(st.integers(0, 4))
        content = _WRITTEN[:at] + data.draw(st.binary(max_size=4)) + _WRITTEN[at + width :]
    try:
        streams, plan = parse_origin(content)
    except ValueError:
        return
    assert all(isinstance(text, str) for pair in streams.items() for text in pair)
    assert RecoveryPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert all(isinstance(part.first, int) for part in plan.by_partition.values())
