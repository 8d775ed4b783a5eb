"""Sinks that read Kafka: rows as Debezium's records, and what is durable by the offsets of their consumer groups."""
