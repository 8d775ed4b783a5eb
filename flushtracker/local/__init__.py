"""Servers that run on this machine, from packages, for tests and demonstrations; never part of a job."""
