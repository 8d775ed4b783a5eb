"""The JSON contract between capture, writers and tracker: events, strict parsing, the chain of fragments. Pure."""
