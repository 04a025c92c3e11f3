"""The nouns. Every stage is a function from earlier ones to the next; nothing here imports anything but msgspec."""

from preflight.model.bandwidth import Collective, busbw_factor
from preflight.model.base import Noun, Strict, from_json, to_json
from preflight.model.evidence import Baseline, BaselineEntry, Evidence, Incident, Settings
from preflight.model.finding import Answer, Check, CheckRun, Finding, Part, Verdict
from preflight.model.inventory import Ancestor, Gpu, GpuPeer, Inventory, Link, Nic, Node, Problem
from preflight.model.job import Backend, Hardware, Job, ModelShape, Need, Parallel, Rule, Severity, Training
from preflight.model.measurement import Failure, Measurement, Mode, Probe, Samples
from preflight.model.plan import AXES, Estimate, Group, Placement, Plan, Rank
from preflight.model.profile import Expected, Profile
from preflight.model.report import SCHEMA, Coverage, Environment, Report
from preflight.model.topology import Topology

__all__ = [
    "AXES",
    "SCHEMA",
    "Ancestor",
    "Answer",
    "Backend",
    "Baseline",
    "BaselineEntry",
    "Check",
    "CheckRun",
    "Collective",
    "Coverage",
    "Environment",
    "Estimate",
    "Evidence",
    "Expected",
    "Failure",
    "Finding",
    "Gpu",
    "GpuPeer",
    "Group",
    "Hardware",
    "Incident",
    "Inventory",
    "Job",
    "Link",
    "Measurement",
    "Mode",
    "ModelShape",
    "Need",
    "Nic",
    "Node",
    "Noun",
    "Parallel",
    "Part",
    "Placement",
    "Plan",
    "Probe",
    "Problem",
    "Profile",
    "Rank",
    "Report",
    "Rule",
    "Samples",
    "Settings",
    "Severity",
    "Strict",
    "Topology",
    "Training",
    "Verdict",
    "busbw_factor",
    "from_json",
    "to_json",
]
