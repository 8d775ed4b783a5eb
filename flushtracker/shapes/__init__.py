"""Shapes: their definitions, which changes of a transaction concern each, and the resulting log items. Pure."""
