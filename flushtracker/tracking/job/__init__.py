"""The tracking job: reads fragments and flushes, and writes acks."""
