"""What Slurm calls: prolog, controller prolog, health program, scan; and what they say to Slurm. Loads nothing by itself: it is on the prolog path."""
