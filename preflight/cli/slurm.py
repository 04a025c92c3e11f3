"""`preflight slurm`: the entry points that Slurm calls. On the prolog path: imports nothing but click."""

import click

from preflight.cli.lazy import LazyGroup

COMMANDS = {
    "prolog": ("preflight.cli.slurm_prolog", "Judge this node before a job: slurm.conf's Prolog."),
    "prolog-slurmctld": ("preflight.cli.slurm_controller", "Measure a job's nodes before it starts: PrologSlurmctld."),
    "health": ("preflight.cli.slurm_health", "Judge this node from time to time: HealthCheckProgram."),
}


@click.group("slurm", cls=LazyGroup, table=COMMANDS, prefix="slurm-")
def command() -> None:
    """What Slurm calls. `deploy/slurm/README.md` says how to set it up, and what happens when."""
