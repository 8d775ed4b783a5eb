"""Computes which LSN may be acknowledged, from what each shape was sent and has flushed.

Pure, but for `acks`, the table, and `job`, the Spark job.
"""
