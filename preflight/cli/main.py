"""The command group. Nothing but click is imported before the command is known."""

import sys
from collections.abc import Sequence

import click

from preflight import __version__
from preflight.cli.lazy import LazyGroup

# command -> (module, one line of help): the line stands here so that --help imports no command
COMMANDS = {
    "run": ("preflight.cli.run", "Measure and judge the nodes of a job: the whole pipeline."),
    "plan": ("preflight.cli.plan", "Lay a job out: groups, placement, estimate. Needs no cluster."),
    "ranks": ("preflight.cli.ranks", "Say where this rank is; run it under the job's own launcher."),
    "node": ("preflight.cli.node", "Show and judge what is in this node, or in saved ones."),
    "topology": ("preflight.cli.topology", "Show GPUs, links and HCAs of a node as a matrix."),
    "judge": ("preflight.cli.judge", "Judge a saved run again, without measuring."),
    "report": ("preflight.cli.report", "Show a saved run, in the terminal or as one HTML page."),
    "compare": ("preflight.cli.compare", "What changed from one saved run to another."),
    "simulate": ("preflight.cli.simulate", "Rehearse a run on a modelled cluster with planted faults."),
    "agent": ("preflight.cli.agent", "Serve this node to a coordinator."),
    "slurm": ("preflight.cli.slurm", "What Slurm calls: node prolog, controller prolog, health program."),
    "scan": ("preflight.cli.scan", "Sweep the idle nodes of a Slurm cluster."),
    "exporter": ("preflight.cli.exporter", "Serve the newest results of the fleet to Prometheus."),
    "push": ("preflight.cli.push", "Push a run's verdict to a Pushgateway."),
    "history": ("preflight.cli.history", "Show earlier runs, and what was found on a node over time."),
    "checks": ("preflight.cli.checks", "List or explain the checks."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"auto_envvar_prefix": "PREFLIGHT", "help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="preflight")
def preflight() -> None:
    """Will this job, with this parallel layout, on these nodes, run at the speed its links allow?

    Exit codes: 0 go, 10 no-go, 3 undecided, 64 wrong usage, 78 bad plan or configuration.
    """


def run_command_line(arguments: Sequence[str]) -> int:  # noqa: PLR0911 - one for each kind of end
    """Run one command and give its exit code. Errors that we expect become one message on stderr."""
    from preflight.errors import PreflightError

    try:
        result = preflight.main(args=list(arguments), prog_name="preflight", standalone_mode=False)
    except click.UsageError as error:
        error.show(file=sys.stderr)
        return 64
    except click.ClickException as error:
        error.show(file=sys.stderr)
        return 3
    except PreflightError as error:
        print(f"preflight: {_printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print("preflight: there is not enough memory (ulimit -v, or the cgroup's limit)", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"preflight: {error.strerror or error}", file=sys.stderr)
        return 3
    except SystemExit:  # click's answer to a reader of --help that has gone away, with 1, which we never give
        return 3
    except (click.Abort, KeyboardInterrupt):
        print("preflight: interrupted", file=sys.stderr)
        return 3
    return result if isinstance(result, int) else 0


def _printable(text: str) -> str:
    """A message without the control characters by which a file's name could write over a terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
