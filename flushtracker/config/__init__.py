"""Configuration: strict YAML, durations, options that may be secret, and the tracking job's configuration file."""
