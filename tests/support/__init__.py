"""What the tests share: the oracle, builders of events and WAL, fakes, and rigs around real servers."""
