"""`preflight run --state FILE`: how far the tournament over all pairs of nodes has come, kept from run to run, for each set of nodes.

One JSON document, written beside the file and then renamed. A file with other content is refused before anything is measured: it may be somebody's.
"""

from pathlib import Path

from preflight.errors import ConfigError, WorldError
from preflight.formats import parse_json, read_bytes, read_noun, write_atomically
from preflight.model import to_json
from preflight.model.base import Noun
from preflight.model.position import Position

SCHEMA = "preflight.state/1"
MAX_NUMBER = 2**53  # of a position's: seeds have 32 bits, and count up by one with each tournament
MAX_SETS = 256  # node sets that are remembered; the one that was used longest ago is forgotten first


class ScanState(Noun, frozen=True, kw_only=True, tag_field="schema", tag=SCHEMA):
    """Positions of several sets of nodes, the one used last at the end."""

    positions: tuple[Position, ...] = ()


class Memory:
    """The state file of a run. Raises ConfigError for a file that holds something else, WorldError if it can't be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.positions = _read(path)

    def position_of(self, fingerprint: str) -> Position | None:
        """Where the tournament over this set of nodes stands; None: it is new."""
        return next((p for p in self.positions if p.fingerprint == fingerprint), None)

    def keep(self, position: Position) -> None:
        """Write it, beside those of other sets that have come into the file meanwhile. Raises WorldError, ConfigError; the file then stays as it was."""
        others = [p for p in _read(self.path) if p.fingerprint != position.fingerprint]
        self.positions = (*others, position)[-MAX_SETS:]
        write_atomically(self.path, to_json(ScanState(positions=self.positions)))


def _read(path: Path) -> tuple[Position, ...]:
    """Nothing of a file that isn't there, or is empty."""
    if path.is_symlink():
        problem = "holds no state of a scan: is a link, which is not written through"
        raise ConfigError(str(path), problem, remedy="give --state the file that it points to")
    try:
        if not path.exists() or (path.is_file() and path.stat().st_size == 0):
            return ()
    except OSError as error:
        raise WorldError(f"{path}: {error.strerror}") from error
    try:
        document = parse_json(read_bytes(path), str(path))
        ours = isinstance(document, dict) and document.get("schema") == SCHEMA
        state = read_noun(path, ScanState)
    except ConfigError as error:
        raise ConfigError(
            str(path),
            f"holds no state of a scan: {error.problem}",
            remedy="give another --state FILE, or remove it: the scan begins anew then",
        ) from error
    if not ours:
        raise ConfigError(
            str(path), f"holds no state of a scan: its schema is not {SCHEMA}", remedy="give another --state FILE"
        )
    for position in state.positions:
        _refuse_impossible(path, position)
    return state.positions


def _refuse_impossible(path: Path, position: Position) -> None:
    """Numbers that no scan comes to: rounds are looked up by them, and a large negative one takes all memory there is."""
    for key in ("seed", "inside", "across"):
        value = getattr(position, key)
        if not 0 <= value < MAX_NUMBER:
            raise ConfigError(
                str(path),
                f"holds no state of a scan: {key} is {value}, expected a whole number from 0 to {MAX_NUMBER - 1}",
                remedy="give another --state FILE, or remove it: the scan begins anew then",
            )
