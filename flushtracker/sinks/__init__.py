"""Sinks that read Kafka: rows become Debezium's records, and the offsets of consumer groups say what is durable."""
