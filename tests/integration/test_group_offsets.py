"""Reading offsets of topics of which some have no leader and some are deleted, and of groups on new brokers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from flushtracker.kafka.group_offsets import GroupOffsets, SampledOffsets, Subject
from flushtracker.local.broker import LocalBroker
from tests.support.kafka_streams import streams_config
from tests.support.second_broker import NODE_ID, second_broker
from tests.support.waiting import wait_until


def test_a_topic_without_a_leader_is_named_and_a_deleted_one_is_not_there(
    killable_broker: LocalBroker, tmp_path: Path, topic_name: Callable[[str], str]
) -> None:
    """Alone, both are the same error of the client, which ended the program for all shapes."""
    servers, group = killable_broker.bootstrap_servers, topic_name("group")
    led, leaderless, deleted = (topic_name(name) for name in ("led", "leaderless", "deleted"))
    waits: Subject = ("topic", leaderless)
    # Before there is a second broker, which would have some of the groups.
    reader = Consumer({"bootstrap.servers": servers, "group.id": group})
    reader.committed([TopicPartition(led, 0)], timeout=60)
    reader.close()
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    offsets = GroupOffsets(replace(streams_config(servers, topic_name), retry_timeout_ms=3_000))

    def look(*topics: str) -> SampledOffsets:
        return offsets.sample({group: [(topic, 0) for topic in topics]})

    with second_broker(killable_broker, tmp_path / "second") as second:
        new = [
            NewTopic(topic, 1, replica_assignment=[[node]])
            for topic, node in ((led, 1), (leaderless, NODE_ID), (deleted, 1))
        ]
        for created in admin.create_topics(new).values():
            created.result(60)
        wait_until(lambda: len(look(led, leaderless, deleted).ends) == 3, "all topics", 60)
        admin.delete_topics([deleted])[deleted].result(60)
        second.run_for(0)
        found = look(led, leaderless)
        assert (found.ends, set(found.unanswered)) == ({(led, 0): 0}, {waits})
        second.kill()
        wait_until(lambda: "no leader" in look(leaderless).unanswered.get(waits, ""), "no leader", 60)
        for others, ends in (((), {}), ((led,), {(led, 0): 0})):
            found = look(leaderless, deleted, *others)
            assert (found.ends, set(found.unanswered)) == (ends, {waits})
        assert look(deleted) == SampledOffsets({}, {group: {}}, {})


def test_a_group_of_brokers_that_have_had_none_is_waited_for(tmp_path: Path, topic_name: Callable[[str], str]) -> None:
    """They create the topic of groups' offsets then. The answer of a broker that does not have it ended the process."""
    with LocalBroker(tmp_path / "broker") as broker:
        offsets = GroupOffsets(replace(streams_config(broker.bootstrap_servers, topic_name), retry_timeout_ms=3_000))
        found = wait_until(lambda: _answered(offsets.sample({"group": [("topic", 0)]})), "an answer", 60)
        assert found == SampledOffsets({}, {"group": {}}, {})
        offsets.close()


def _answered(found: SampledOffsets) -> SampledOffsets | None:
    return None if found.unanswered else found
