"""Eviction: when and how capture evicts a shape that holds the slot's WAL."""
