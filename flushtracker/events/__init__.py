"""The JSON contract between capture, writers and tracker: event types, strict parsing, the fragment chain. Pure."""
