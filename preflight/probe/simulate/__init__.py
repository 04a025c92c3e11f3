"""A simulated fabric: flow-level, max-min fair, with planted faults. What it gives was computed, not measured, and is marked so wherever it is shown."""

from preflight.probe.simulate.cluster import FAULT_KINDS, Cluster, Fault, FaultKind, plain_cluster
from preflight.probe.simulate.fabric import Fabric

__all__ = ["FAULT_KINDS", "Cluster", "Fabric", "Fault", "FaultKind", "plain_cluster"]
