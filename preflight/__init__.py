"""preflight: will this job, with this parallel layout, on these nodes, run at the speed its links allow?"""

__version__ = "0.1.0"
