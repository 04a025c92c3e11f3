"""One file per framework: its axes and their order, what it fills in by itself, and the layouts that it refuses."""
