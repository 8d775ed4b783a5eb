"""Shared test code: the oracle, builders of events and WAL, fakes, and rigs around real servers."""
