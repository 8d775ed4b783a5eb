"""Configuration: strict YAML, sizes and durations, options that may be secret, and the jobs' configurations."""
