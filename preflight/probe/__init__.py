"""Probing: schedule, collectives, timing, workers. The only stage that imports torch."""
