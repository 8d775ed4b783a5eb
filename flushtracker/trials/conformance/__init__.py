"""A test of any writer against the contract of docs/writers.md: random changes, kills, resends and gaps."""
