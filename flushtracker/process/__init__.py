"""Processes of the operating system: exit codes, signals, and children that never outlive their parent."""
