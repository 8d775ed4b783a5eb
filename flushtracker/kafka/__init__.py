"""Kafka outside Spark: the only package that imports confluent_kafka."""
