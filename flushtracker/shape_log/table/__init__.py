"""The shape log: its table and files, its writer's claim, its reader and its upkeep."""
