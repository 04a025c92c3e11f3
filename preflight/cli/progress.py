"""A progress bar with the remaining time, on a terminal only, on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[str, float, float], None]  # phase, seconds of work done, seconds of work planned


@contextmanager
def progress_bar() -> Iterator[Show]:
    """Gives a function to call as work goes on; it does nothing where no person watches."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda phase, done_s, total_s: bar.update(task, description=phase, completed=done_s, total=total_s)
