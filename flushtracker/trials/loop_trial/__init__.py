"""Kills the whole loop on any server, brokers and storage, and judges from outside whether it keeps its promise."""
