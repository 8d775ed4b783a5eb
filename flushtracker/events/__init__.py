"""The JSON contract between capture, writers and tracker: each event, its strict reading, and the chain. Pure."""
