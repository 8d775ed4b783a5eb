"""Tests any writer against the contract in docs/writers.md, with random changes, kills, resends and gaps."""
