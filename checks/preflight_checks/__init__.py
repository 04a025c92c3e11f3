"""The built-in checks, in reading order."""

from preflight.model import Check
from preflight_checks import (
    gpu_count,
    memory_fit,
    node_uniform,
    pipeline_bubble,
    plan_consistent,
    tp_in_nvlink_domain,
)

CHECKS: tuple[Check, ...] = (
    plan_consistent.CHECK,
    memory_fit.CHECK,
    pipeline_bubble.CHECK,
    tp_in_nvlink_domain.CHECK,
    gpu_count.CHECK,
    node_uniform.CHECK,
)
