"""Servers that run on this machine from packages, for `up`, the demo, conformance, the warm-up and tests."""
