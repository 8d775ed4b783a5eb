"""The ack table: written by the tracking job, read by capture and operators."""
