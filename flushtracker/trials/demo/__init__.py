"""The whole pipeline on one machine, with a workload and a live view: ``make demo``. Never part of a job."""
