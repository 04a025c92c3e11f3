"""`preflight slurm health`: Slurm's HealthCheckProgram. On the prolog path: imports nothing heavy."""

import os
from pathlib import Path

import click


@click.command("health")
@click.option("--config", metavar="FILE", help="The site's file [default: /etc/preflight/preflight.toml].")
@click.option("--textfile-dir", metavar="DIR", help="Where metrics go [default: as the site's file says].")
@click.option(
    "--jitter",
    "jitter_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 60),
    default=5.0,
    show_default=True,
    help="Begin up to so much later, so that not all nodes begin at once.",
)
@click.option("--root", metavar="DIR", default="/", hidden=True, help="Where /proc and /sys are found.")
def command(config: str | None, textfile_dir: str | None, jitter_s: float, root: str) -> int:
    """Judge this node from time to time: slurm.conf's HealthCheckProgram, through deploy/slurm/health.sh.

    Drains the node by itself; resumes it only where [slurm] resume is on, a local check of preflight drained it, and all passes now.

    Exit codes: 10 the node is drained now, 0 nothing against it, 3 undecided, 78 bad configuration. Slurm ignores them.
    """
    from preflight.slurm.health import run_health

    return run_health(os.environ, config=config, textfile_dir=textfile_dir, jitter_s=jitter_s, root=Path(root))
