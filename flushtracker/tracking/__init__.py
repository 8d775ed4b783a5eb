"""The answer: which LSN may be acknowledged, given what was sent to each shape and flushed by it. Pure."""
