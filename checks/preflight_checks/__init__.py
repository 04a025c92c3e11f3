"""The built-in checks, in reading order."""

from preflight.model import Check
from preflight_checks import (
    data_correct,
    gpu_count,
    group_busbw,
    group_contention,
    memory_fit,
    node_uniform,
    pair_outlier,
    pipeline_bubble,
    plan_consistent,
    reachable,
    tp_in_nvlink_domain,
)

CHECKS: tuple[Check, ...] = (
    gpu_count.CHECK,
    node_uniform.CHECK,
    tp_in_nvlink_domain.CHECK,
    pipeline_bubble.CHECK,
    memory_fit.CHECK,
    reachable.CHECK,
    data_correct.CHECK,
    pair_outlier.CHECK,
    group_busbw.CHECK,
    group_contention.CHECK,
    plan_consistent.CHECK,
)
