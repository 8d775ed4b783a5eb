"""What goes out and comes back: events to Kafka, acks from the tracker, status updates to the server."""
