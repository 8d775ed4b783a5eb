"""Kills parts of the whole loop on any server, brokers and storage, and checks its promises from outside."""
