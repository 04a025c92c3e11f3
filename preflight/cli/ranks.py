"""`preflight ranks`: run under the job's own launcher, every rank says where it really is. On the path of every rank: imports nothing heavy."""

import os
import sys
from pathlib import Path

import click

from preflight.cli.node_input import MAX_TIMEOUT_S
from preflight.errors import UsageError, WorldError

PIPE_BUF = 4096  # Linux, pipe(7): a write of at most this many bytes to a pipe is not mixed with another process's


@click.command(name="ranks")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write one file for each rank into this folder, in place of a line on stdout.",
)
@click.option("--timeout", "timeout_s", type=float, default=20.0, show_default=True, help="Seconds for the GPU driver.")
def command(out: Path | None, timeout_s: float) -> int:
    """Say where this rank is: host, boot id, GPU, NVLink domain. Start it as the job is started:

    \b
      srun preflight ranks > ranks.jsonl
      torchrun --no-python ... preflight ranks --out ranks.d
      mpirun ... preflight ranks > ranks.jsonl

    Then `preflight plan job.toml --ranks ranks.jsonl` judges the job where its ranks really are.
    """  # noqa: D301 - \b is the character by which click leaves a paragraph as it is
    from preflight.discover.rank import this_rank

    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise UsageError(f"--timeout {timeout_s:g}: expected more than 0 and at most {MAX_TIMEOUT_S:g} seconds")
    facts = this_rank(os.environ, deadline_s=timeout_s)
    import msgspec

    line = msgspec.json.encode(facts) + b"\n"
    if len(line) > PIPE_BUF:
        bare = msgspec.structs.replace(facts, environment={}, problems=())
        line = msgspec.json.encode(bare) + b"\n"
        if len(line) > PIPE_BUF:  # thousands of letters in a variable that takes a few UUIDs, or a name
            line = msgspec.json.encode(msgspec.structs.replace(bare, visible_devices=None, node=None)) + b"\n"
    if out is not None:
        _write(out, facts.rank, line)
    else:
        _print(line)
    for problem in facts.problems:
        print(f"preflight: rank {facts.rank}: {problem.source}: {problem.text}", file=sys.stderr)
    return 0


def _print(line: bytes) -> None:
    """In one piece, whatever Python's buffer would make of it."""
    sys.stdout.flush()
    try:
        written = os.write(sys.stdout.fileno(), line)
    except (OSError, ValueError) as error:  # ValueError: stdout is no file (a test's)
        if isinstance(error, OSError) and not hasattr(sys.stdout, "getvalue"):
            raise WorldError(f"the output can't be written: {error.strerror or error}") from error
        sys.stdout.write(line.decode())
        return
    while written < len(line):
        written += os.write(sys.stdout.fileno(), line[written:])


def _write(folder: Path, rank: int, line: bytes) -> None:
    from preflight.formats import write_atomically

    try:
        folder.mkdir(parents=True, exist_ok=True)  # many ranks may do so at once
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}") from error
    write_atomically(folder / f"rank-{rank:06d}.json", line)
