"""The parts of the collector: what is published, in what order, and what of it may be confirmed to the server."""
