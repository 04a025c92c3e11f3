"""The built-in checks, in reading order.

Loaded when they are asked for: CHECKS are all; NODE_CHECKS those that need neither a plan nor measurements, so that a prolog doesn't load the others.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight.model import Check

    CHECKS: tuple[Check, ...]
    NODE_CHECKS: tuple[Check, ...]


def __getattr__(name: str) -> "tuple[Check, ...]":
    """CHECKS and NODE_CHECKS."""
    if name not in ("CHECKS", "NODE_CHECKS"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from preflight_checks._of_nodes import NODE_CHECKS

    if name == "NODE_CHECKS":
        return NODE_CHECKS
    from preflight_checks._of_plans import PLAN_CHECKS

    return (*NODE_CHECKS, *PLAN_CHECKS)
