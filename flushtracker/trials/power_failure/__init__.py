"""Simulates power failures for any program that writes to a folder: only what it has synced is sure to be left."""
