"""What to change: a repair for a bad placement (placement.py), a ranked list of layouts for a job without degrees (layouts.py)."""

from preflight.plan.advise.layouts import advise_layouts, wants_layouts
from preflight.plan.advise.placement import advise_placement

__all__ = ["advise_layouts", "advise_placement", "wants_layouts"]
