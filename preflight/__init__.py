"""preflight: will this job, with this parallel layout, on these nodes, run at the speed its links allow?

In a training script: `preflight.assert_placement("job.toml")`, which raises `preflight.PlacementError` (preflight/in_job).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight.errors import PlacementError
    from preflight.in_job import assert_placement

__version__ = "0.1.0"
__all__ = ["PlacementError", "__version__", "assert_placement"]


def __getattr__(name: str) -> object:
    """What a training script needs, imported when first asked for: the command line must not pay for it."""
    if name == "assert_placement":
        from preflight.in_job import assert_placement

        return assert_placement
    if name == "PlacementError":
        from preflight.errors import PlacementError

        return PlacementError
    raise AttributeError(f"module 'preflight' has no attribute {name!r}")
