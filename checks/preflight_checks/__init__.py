"""The built-in checks, in reading order."""

from preflight.model import Check
from preflight_checks import (
    axis_cost,
    cp_in_nvlink_domain,
    data_correct,
    ep_in_nvlink_domain,
    gpu_count,
    gpu_per_rank,
    group_busbw,
    group_contention,
    leaf_spread,
    memory_fit,
    node_uniform,
    pair_outlier,
    pipeline_bubble,
    plan_consistent,
    ranks_match,
    reachable,
    same_slot,
    tp_in_nvlink_domain,
)

CHECKS: tuple[Check, ...] = (
    gpu_count.CHECK,
    node_uniform.CHECK,
    ranks_match.CHECK,
    gpu_per_rank.CHECK,
    tp_in_nvlink_domain.CHECK,
    cp_in_nvlink_domain.CHECK,
    ep_in_nvlink_domain.CHECK,
    axis_cost.CHECK,
    leaf_spread.CHECK,
    same_slot.CHECK,
    pipeline_bubble.CHECK,
    memory_fit.CHECK,
    reachable.CHECK,
    data_correct.CHECK,
    pair_outlier.CHECK,
    group_busbw.CHECK,
    group_contention.CHECK,
    plan_consistent.CHECK,
)
