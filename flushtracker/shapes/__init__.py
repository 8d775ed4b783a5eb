"""Shapes: their definitions, what of a transaction concerns each, and the log items it becomes. Pure."""
