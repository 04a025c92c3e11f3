"""Pipeline schedules, for the stage that plans. The arithmetic lives in the model, where checks may use it too."""

from preflight.model.pipeline import bubble_overhead, idle_share, in_flight, micro_batches_for, schedule_of

__all__ = ["bubble_overhead", "idle_share", "in_flight", "micro_batches_for", "schedule_of"]
