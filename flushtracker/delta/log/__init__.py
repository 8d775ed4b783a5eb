"""The shape log: its table, its files, its writer's claim, its readers and its upkeep."""
