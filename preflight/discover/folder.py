"""A device's folder in sysfs, read file by file: what fails is noted, and costs only its own fact."""

import errno

from preflight.discover.files import ask_line, ask_names, is_absent, reason, to_int
from preflight.model import Problem

_ENOTSUPP = 524  # the kernel's own, which some drivers let out
_REFUSED = {errno.EINVAL, errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, _ENOTSUPP}


class Folder:
    """The files below `path`, for the Problems called `shown`, about `field`. Absent files are no failure; a reason is noted once."""

    def __init__(self, path: str, shown: str, field: str, problems: list[Problem]) -> None:
        self.path = path
        self.shown = shown
        self.field = field
        self._problems = problems
        self._told: set[str] = set()

    def text(self, file: str) -> str | None:
        """The content of a file, None if it is absent, empty, or could not be read."""
        try:
            return ask_line(f"{self.path}/{file}") or None
        except OSError as error:
            self._note(file, error)
            return None

    def optional(self, file: str) -> str | None:
        """As `text`, of a file that the kernel refuses to read where the device has no such thing: an unused address, a counter of other cards."""
        try:
            return ask_line(f"{self.path}/{file}") or None
        except OSError as error:
            if error.errno not in _REFUSED:
                self._note(file, error)
            return None

    def number(self, file: str, base: int = 10) -> int | None:
        """The number in a file, None as above or if it holds none that is 0 or more."""
        text = self.text(file)
        number = None if text is None else to_int(text, base)
        return None if number is None or number < 0 else number

    def names(self, folder: str) -> tuple[str, ...] | None:
        """The entries of a folder, None if it is absent or can't be listed."""
        try:
            return ask_names(f"{self.path}/{folder}")
        except OSError as error:
            self._note(folder, error)
            return None

    def _note(self, file: str, error: OSError) -> None:
        if not is_absent(error) and reason(error) not in self._told:
            self._told.add(reason(error))
            self.say(f"{file}: {reason(error)}")

    def say(self, text: str) -> None:
        """Note a Problem of this device."""
        self._problems.append(Problem(source=self.shown, text=text, field=self.field))
