"""`preflight slurm prolog-slurmctld`: Slurm's PrologSlurmctld on the controller."""

import os

import click


@click.command("prolog-slurmctld")
@click.option("--config", metavar="FILE", help="The site's file [default: /etc/preflight/preflight.toml].")
@click.option("--textfile-dir", metavar="DIR", help="Where metrics go [default: as the site's file says].")
def command(config: str | None, textfile_dir: str | None) -> int:
    """Measure a job's nodes before it starts: slurm.conf's PrologSlurmctld, through deploy/slurm/prolog-slurmctld.sh.

    Reads the job from the variables that slurmctld sets, asks the resident agents of its nodes to measure every pair and group of its plan, drains the node that is to blame, and has Slurm requeue the job.

    Exit codes: 10 a node of the job is drained now, and Slurm should requeue the job; 0 the job starts, is held, or nothing is known (the log says which).
    """
    from preflight.slurm.controller import run_controller

    return run_controller(os.environ, config=config, textfile_dir=textfile_dir)
