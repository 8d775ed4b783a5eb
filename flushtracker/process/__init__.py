"""The operating system's processes: exit codes, signals, and children that never outlive their parent."""
