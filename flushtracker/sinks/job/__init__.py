"""``flushtracker sink``: feeds the topics of Kafka sinks, and notifies what their consumer groups have committed."""
