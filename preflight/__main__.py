"""`python -m preflight` and the `preflight` command: the one place where errors become exit codes."""

import os
import sys


def main() -> None:
    """Run the command line; never exits with 1 on purpose, since that is what a broken installation gives."""
    from preflight.cli.main import run_command_line

    code = run_command_line(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader (head, less) went away: that is its right, and no fault of the run
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
