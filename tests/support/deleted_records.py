"""Records that are deleted from a topic at once: as retention does later, or as nobody should."""

import pytest
from confluent_kafka import OFFSET_END, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs lack these exports
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.support.waiting import wait_until


def delete_records(bootstrap_servers: str, topic: str) -> None:
    """Delete what is in the topic now; raises ``KafkaException`` if it may only be compacted."""
    # The client must live until the answer.
    admin = _admin(bootstrap_servers)
    partitions = admin.list_topics(topic, timeout=60).topics[topic].partitions
    for future in admin.delete_records([TopicPartition(topic, number, OFFSET_END) for number in partitions]).values():
        future.result(60)


def delete_compacted(bootstrap_servers: str, topic: str) -> None:
    """The same of a compacted topic, whose policy must be another one for that moment."""
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        delete_records(bootstrap_servers, topic)
    _set_policy(bootstrap_servers, topic, "delete")
    wait_until(lambda: _is_deleted(bootstrap_servers, topic), f"the records of {topic} are deleted", 60)
    _set_policy(bootstrap_servers, topic, "compact")


def _is_deleted(bootstrap_servers: str, topic: str) -> bool:
    try:
        delete_records(bootstrap_servers, topic)
    except KafkaException:
        # The broker does not know the policy yet.
        return False
    return True


def _set_policy(bootstrap_servers: str, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = _admin(bootstrap_servers)
    admin.incremental_alter_configs([resource])[resource].result(60)


def _admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers})
