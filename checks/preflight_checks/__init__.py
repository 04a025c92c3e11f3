"""The built-in checks, in reading order."""

from preflight.model import Check
from preflight_checks import gpu_count, node_uniform

CHECKS: tuple[Check, ...] = (gpu_count.CHECK, node_uniform.CHECK)
