"""The files that launchers read to learn which node comes when: Slurm's arbitrary hostfile, DeepSpeed's hostfile, MPI's rankfile."""

from collections.abc import Iterable, Sequence

from preflight.model.hostlist import fold, unfold


def slurm_hostfile(nodes: Sequence[str], per_node: int) -> str:
    """One host a line, one line per task: with `--distribution=arbitrary` task i runs on line i (srun's manual, SLURM_HOSTFILE)."""
    return "".join(f"{name}\n" * per_node for name in nodes)


def deepspeed_hostfile(nodes: Sequence[str], per_node: int) -> str:
    """One node a line with its slots: the order of lines is the order of ranks."""
    return "".join(f"{name} slots={per_node}\n" for name in nodes)


def mpi_rankfile(nodes: Sequence[str], per_node: int) -> str:
    """One rank a line with its host and slot (Open MPI's manual, --rankfile)."""
    return "".join(
        f"rank {node * per_node + slot}={name} slot={slot}\n"
        for node, name in enumerate(nodes)
        for slot in range(per_node)
    )


def named_lines(pairs: Iterable[tuple[str, str]]) -> str:
    """Two columns, a space between."""
    return "".join(f"{name} {value}\n" for name, value in pairs)


def host_list(nodes: Sequence[str]) -> str:
    """The nodes in this very order as a value of `launch.hosts`: folded where that keeps the order, else written out."""
    short = fold(nodes)
    return short if unfold(short) == list(nodes) else ",".join(nodes)
