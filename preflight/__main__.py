"""`python -m preflight` and the `preflight` command: the one place where errors become exit codes."""

import contextlib
import gc
import io
import os
import sys


def main() -> None:
    """Run the command line; never exits with 1 on purpose, since that is what a broken installation gives."""
    _open_closed_streams()
    _buffer_output()
    gc.set_threshold(
        50_000
    )  # a start makes many objects that stay: looking among them for garbage is a twelfth of the time
    try:
        from preflight.cli.main import run_command_line

        code = run_command_line(sys.argv[1:])
    except KeyboardInterrupt:  # while modules were being loaded
        code = 3
        with contextlib.suppress(OSError):
            sys.stderr.write("preflight: interrupted\n")
    except OSError:  # not even the message about what went wrong could be written
        code = 3
    try:
        sys.stdout.flush()
    except OSError as error:
        # a reader (head, less) that went away is no fault of the run; a full disk is said, and changes no verdict
        if not isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):
                sys.stderr.write(f"preflight: the output can't be written: {error.strerror}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(
        code
    )  # everything is written and every process of ours ended: taking objects apart one by one only takes time


def _buffer_output() -> None:
    """Under PYTHONUNBUFFERED, as in most containers, what a full disk takes only in part is lost without an error: a report would end in the middle, and nobody be told."""
    unbuffered = getattr(sys.stdout, "buffer", None)
    if isinstance(unbuffered, io.RawIOBase):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(unbuffered),
            encoding=sys.stdout.encoding,
            errors=sys.stdout.errors,
            line_buffering=True,
        )


def _open_closed_streams() -> None:
    """Nothing that we open may land on a closed standard stream and be written to as if it were one."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115 - as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115


if __name__ == "__main__":
    main()
