"""The operators' commands: status, topics, read, report, and adding and removing shapes."""
