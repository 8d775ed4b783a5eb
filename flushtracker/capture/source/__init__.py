"""Which source a server continues: its identity and history, over restarts, failovers and upgrades."""
