"""Servers that run on this machine from packages, for tests, the demo, conformance and the warm-up."""
