"""Events as records: each in the topic of its stream, under the key that its order or its compaction needs."""

from collections.abc import Callable

from flushtracker.events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.keys import flush_key, fragment_key, shape_key
from flushtracker.kafka.publisher import KafkaPublisher


class EventPublisher(KafkaPublisher):
    """A :class:`KafkaPublisher` that knows the streams of its configuration. Its topics are not checked here."""

    def __init__(self, config: KafkaConfig) -> None:
        super().__init__(config)
        self._topics = config.topics

    def publish_fragment(self, event: FragmentEvent, on_confirmed: Callable[[], None] | None = None) -> None:
        self.publish(self._topics.fragments, fragment_key(event.source), event.to_json(), on_confirmed)

    def publish_flush(self, event: FlushNotification, on_confirmed: Callable[[], None] | None = None) -> None:
        key = flush_key(event.source, event.shape_id, event.type)
        self.publish(self._topics.flushes, key, event.to_json(), on_confirmed)

    def publish_shape_changes(self, event: ShapeChangesEvent, on_confirmed: Callable[[], None] | None = None) -> None:
        key = shape_key(event.source, event.shape_id)
        self.publish(self._topics.shape_changes, key, event.to_json(), on_confirmed)
