"""What a job of the scan runs: `preflight run` with a plan file beside it."""

import sys
from pathlib import Path

from preflight.config import Site
from preflight.errors import ConfigError
from preflight.formats import read_bytes
from preflight.slurm.scan_nodes import Kind

MAX_PLAN_BYTES = 128 * 2**10
MAX_TOPOLOGY_BYTES = 32 * 2**20
# a model whose messages are large enough to tell rates; nothing is said of what only a job's own model can tell
_PAIRS_ONLY = """# written by preflight scan: every pair of nodes, and all of them as one group
[model]
parameters = "70B"
layers = 80
hidden_size = 8192
attention_heads = 8
kv_heads = 8
head_dim = 128
[parallel]
tp = 1
[training]
micro_batches = 8
micro_batch_size = 1
seq_length = 4096
[rules]
memory_fit = "off"
axis_cost = "off"
pipeline_bubble = "off"
straggler_cost = "off"
plan_consistent = "off"
master_rank = "off"
"""
_ON_CPUS = """[hardware]
backend = "gloo"
gpus_per_node = 1
"""


def write_plan(folder: Path, kind: Kind, site: Site) -> Path:
    """The plan file of one job: the site's own for scans, or one of ours, with the site's topology beside it. Raises ConfigError."""
    path = folder / "plan.toml"
    if site.scan.plan is not None:
        content = read_bytes(site.scan.plan, MAX_PLAN_BYTES)
    else:
        text = _PAIRS_ONLY + ("" if kind.gpus else _ON_CPUS)
        if site.slurm.topology is not None:
            _write(folder / "topology", read_bytes(site.slurm.topology, MAX_TOPOLOGY_BYTES))
            text += '[launch]\ntopology = "topology"\n'
        content = text.encode()
    _write(path, content)
    return path


def command_of(plan: Path, state: Path, site: Site) -> list[str]:
    """What each task of the job's step runs; it leaves report.json beside the plan."""
    program = site.scan.command or (sys.executable, "-m", "preflight")
    budget = f"{site.scan.budget_s:.0f}s"
    return [*program, "run", str(plan), "--budget", budget, "--out", str(plan.parent), "--state", str(state)]


def roots_of(path: str | None) -> dict[str, str] | None:
    """Node -> its topmost switch, by the site's topology file; None: there is no file, or it names no switches. Raises ConfigError."""
    if path is None:
        return None
    from preflight.discover.topology_files import read_topology

    switches = read_topology(path).switches
    return {node: above[-1] for node, above in switches.items() if above} if switches else None


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(str(path), f"can't be written: {error.strerror}") from error
