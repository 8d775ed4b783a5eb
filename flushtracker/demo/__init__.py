"""Everything on one machine, with a workload and a live view: what ``make demo`` runs. Never part of a job."""
