"""Shared by all programs: exit codes, signals, logs, the clock, and children that never outlive their parent."""
