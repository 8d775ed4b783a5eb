"""Capture: reads a replication slot, publishes its changes to Kafka, and confirms to the server what is durable."""
