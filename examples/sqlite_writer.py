"""A writer of shape logs in SQLite: ``python examples/sqlite_writer.py flushtracker.yaml shapes.db [NAME]``."""

import json
import sqlite3
import sys
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

import flushtracker as ft

TABLES = """PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS log (source, shape_id, tx, op, xid, operation, key, value,
                                PRIMARY KEY (source, shape_id, tx, op));
CREATE TABLE IF NOT EXISTS cursors (source, shape_id, tx, op, PRIMARY KEY (source, shape_id));
CREATE TABLE IF NOT EXISTS snapshot_rows (source, shape_id, attempt, key, value,
                                          PRIMARY KEY (source, shape_id, attempt, key));
CREATE TABLE IF NOT EXISTS snapshots (source, shape_id, attempt, events, incarnation, complete,
                                      PRIMARY KEY (source, shape_id));
CREATE TABLE IF NOT EXISTS positions (topic, partition, kafka_offset, PRIMARY KEY (topic, partition));"""
HIDE = "UPDATE snapshots SET complete = NULL WHERE source = ? AND shape_id = ? AND ? <> ?"
OTHERS = "DELETE FROM snapshot_rows WHERE source=? AND shape_id=? AND attempt NOT IN (SELECT value FROM json_each(?))"


def counts(shape: tuple[str, str], incarnation: int) -> bool:
    """Whether this is not of an earlier incarnation; a later one begins, without what is stored of the one before."""
    if snapshots.begin(*shape, incarnation):
        removed.discard(shape)
        db.execute("DELETE FROM log WHERE source = ? AND shape_id = ?", shape)
        db.execute("REPLACE INTO snapshots VALUES (?, ?, 0, 0, ?, NULL)", (*shape, incarnation))
    return incarnation == snapshots.incarnation(*shape)


def store(event: ft.ShapeChangesEvent) -> None:
    """Store what is new in the event, with the shape's cursor."""
    shape = event.source, event.shape_id
    position = ft.chain_position(event, cursors.get(shape))
    if event.writer != me or not counts(shape, event.incarnation) or shape in removed or position == "gap":
        print(f"ignored, not ours, begun again or after a gap: {shape} at {event.last_log_offset}", file=sys.stderr)
        return
    if position == "next":
        for item in ft.new_items(event, cursors.get(shape)):
            row = (*shape, *item.offset, event.xid, item.operation, item.key, json.dumps(item.value))
            db.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        cursors[shape] = ft.cursor_after(event)
        db.execute("REPLACE INTO cursors VALUES (?, ?, ?, ?)", (*shape, *cursors[shape]))
    notifier.flushed(*shape, cursors[shape])  # Only noted; published below, once it is durable.


def store_snapshot(event: ft.SnapshotEvent) -> None:
    """Store the rows of the event, with how far its attempt is taken, and what its end says."""
    shape = event.source, event.shape_id
    if shape in removed or not counts(shape, event.incarnation) or (position := snapshots.take(event)) == "ignored":
        return
    rows = [(*shape, event.attempt, row.key, json.dumps(row.value)) for row in event.rows]
    db.executemany("INSERT INTO snapshot_rows VALUES (?, ?, ?, ?, ?)", rows)
    if position == "first" or event.end is not None:  # Rows of a torn attempt, or of the one that this replaces.
        db.execute(OTHERS, (*shape, json.dumps(sorted(snapshots.attempts(*shape)))))
    text = end.to_json() if (end := snapshots.complete(*shape)) else None
    values = (*shape, event.attempt, event.number + 1, event.incarnation, text)
    db.execute("REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", values)


config, db, me = ft.load_kafka_config(Path(sys.argv[1])), sqlite3.connect(sys.argv[2]), [*sys.argv, "own"][3]
db.executescript(TABLES)
cursors = {(row[0], row[1]): ft.LogOffset(*row[2:]) for row in db.execute("SELECT * FROM cursors")}
begun = {(row[0], row[1]): ft.SnapshotCursor(*row[2:5]) for row in db.execute("SELECT * FROM snapshots")}
ends = db.execute("SELECT complete FROM snapshots WHERE complete IS NOT NULL")
snapshots = ft.SnapshotReader(begun, [ft.SnapshotEvent.from_json(text) for (text,) in ends])
removed: set[tuple[str, str]] = set()
topics = [config.topics.shapes, config.topics.shape_changes, *filter(None, [config.topics.snapshots])]
starts = {(topic, number): at for topic, number, at in db.execute("SELECT * FROM positions")}
settings = {"bootstrap.servers": config.bootstrap_servers, "group.id": "unused", "enable.auto.commit": False}
consumer = Consumer({**config.options, **settings, "auto.offset.reset": "earliest"})
found = [consumer.list_topics(topic, timeout=30).topics[topic] for topic in topics]
if errors := [topic.error for topic in found if topic.error]:
    raise KafkaException(*errors)
consumer.assign([TopicPartition(of.topic, n, starts.get((of.topic, n), 0)) for of in found for n in of.partitions])
with ft.FlushNotifier(config, writer=me) as notifier:
    notifier.start(cursors)
    while True:
        for message in consumer.consume(200, timeout=0.05):
            error, topic, value = message.error(), message.topic(), message.value() or b""
            if error and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # No group is used.
                raise KafkaException(error)
            if topic == config.topics.shape_changes:
                store(ft.ShapeChangesEvent.from_json(value))
            elif topic and topic == config.topics.snapshots:
                store_snapshot(ft.SnapshotEvent.from_json(value))
            elif topic and value and isinstance(entry := ft.parse_registry_entry(value), ft.ShapeEntry):
                shape = entry.source, entry.definition.id
                if counts(shape, entry.definition.incarnation) and (entry.definition.writer != me or entry.removed_at):
                    removed.add(shape)
                    db.execute(HIDE, (*shape, entry.definition.writer, me))  # Its snapshot may have come before.
            if topic in (config.topics.shape_changes, config.topics.snapshots):  # The registry is read at each start.
                position = topic, message.partition(), (message.offset() or 0) + 1
                db.execute("REPLACE INTO positions VALUES (?, ?, ?)", position)
        db.commit()  # First durable,
        notifier.flush()  # then said.
