"""The plan: from degrees and order to ranks, groups, placement and an estimate."""
