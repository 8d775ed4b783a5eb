"""Eviction: when capture evicts a shape that holds the slot's WAL, and how."""
