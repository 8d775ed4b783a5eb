"""Eviction: when capture removes a shape that holds the slot's WAL, and how."""
