"""`preflight slurm prolog`: Slurm's Prolog on a node. On the prolog path: imports nothing heavy."""

import os
from pathlib import Path

import click


@click.command("prolog")
@click.option("--config", metavar="FILE", help="The site's file [default: /etc/preflight/preflight.toml].")
@click.option("--textfile-dir", metavar="DIR", help="Where metrics go [default: as the site's file says].")
@click.option("--root", metavar="DIR", default="/", hidden=True, help="Where /proc and /sys are found.")
def command(config: str | None, textfile_dir: str | None, root: str) -> int:
    """Judge this node before a job starts on it: slurm.conf's Prolog, through deploy/slurm/prolog.sh.

    Reads the job from the variables that slurmd sets. Asks Slurm nothing unless the node is to be drained.

    Exit codes: 10 the node is drained now, and Slurm should requeue the job; all others let the job start: 0 nothing against it, 3 undecided, 78 bad configuration.
    """
    from preflight.slurm.prolog import run_prolog

    return run_prolog(os.environ, config=config, textfile_dir=textfile_dir, root=Path(root))
