"""The whole pipeline on one machine, with a workload and a live view (``make demo``). Not used by the jobs."""
