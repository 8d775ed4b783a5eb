"""The tracking job: fragments and flushes in, acks out."""
