"""What steers NCCL, CUDA and the libraries beside them, and where each value comes from.

NCCL looks first at the environment; then at the file that NCCL_CONF_FILE names (since 2.23), or ~/.nccl.conf if that is not set; then at /etc/nccl.conf. What was set earlier stays, even if it is
empty. A line is NAME=VALUE; one that begins with "#" is left out; blanks belong to the name and the value; the home directory is that of the account, not $HOME. Source: NCCL user guide,
"Environment Variables", and NCCL 2.30's src/misc/param.cc.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from preflight.discover.files import names_in
from preflight.discover.pci import pci_bus_id
from preflight.model import Setting
from preflight.model.base import Record

MAX_VALUE = 200
MAX_FILE_BYTES = 2**20  # a topology of eight GPUs is some 20 kB
MAX_SETTINGS = 500

# NCCL's own and its plug-ins' (OFI_NCCL_: aws-ofi-nccl), torch's watchdog and gloo, and the transports below: libfabric (FI_), UCX
_PREFIXES = ("NCCL_", "TORCH_NCCL_", "OFI_NCCL_", "GLOO_", "FI_", "UCX_")
# CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA Container Toolkit and IMEX documentation
_NAMES = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"),
        *("CUDA_MPS_PIPE_DIRECTORY", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_IMEX_CHANNELS"),
    }
)
_HIDDEN = r"(?i:TOKEN|SECRET|PASSW|CREDENTIAL)"
_FILES = frozenset({"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG_FILE"})
_PLUGINS = frozenset(
    {"NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN"}
)  # paths only if they have a "/"
_DEVICE = (
    rb"<pci\s[^<>]{0,400}?busid=[\"']([0-9a-fA-F:.]{7,16})[\"'][^<>]{0,400}?class=[\"']0x03"  # display controllers
)
_ASSUMED = r"^(?:export\s+)?\s*((?:NCCL|TORCH_NCCL|CUDA)_\w+)\s*$"

ENVIRONMENT = "environment"


class _Source(Record, frozen=True):
    """A place of settings; `values` in its own order, the first of a name counts."""

    origin: str
    values: dict[str, str]


def read_settings(
    environment: Mapping[str, str], *, root: Path = Path("/"), home: Path | None = None
) -> tuple[Setting, ...] | None:
    """The settings that are in force, by name, each with the places that gave another value and lost. Never raises.

    `environment`: of the process whose settings are asked for. `root`: where files are looked up. `home`: the account's home directory, None if it has none.
    Values are cut at 200 characters; those that look like secrets are not shown.
    """
    places = [_Source(ENVIRONMENT, dict(environment))]
    named = environment.get("NCCL_CONF_FILE")
    if named:
        places.append(_file(named, root))
    elif home is not None:
        places.append(_file(str(home / ".nccl.conf"), root))
    places.append(_file("/etc/nccl.conf", root))
    names = sorted({name for place in places for name in place.values if _steers(name)})
    return tuple(_setting(name, places, root) for name in names[:MAX_SETTINGS])


def _steers(name: str) -> bool:
    return (
        name.startswith(_PREFIXES)
        or name in _NAMES
        or (name != name.strip() and bool(re.match(_ASSUMED, name)))
        or (name.startswith("export ") and bool(re.match(_ASSUMED, name)))
    )


def _setting(name: str, places: list[_Source], root: Path) -> Setting:
    given = [(place.origin, place.values[name]) for place in places if name in place.values]
    origin, value = given[0]
    overrides = tuple(f"{other}={_shown(name, lost)}" for other, lost in given[1:] if lost != value)
    return Setting(
        name=_printable(name)[:MAX_VALUE],
        value=_shown(name, value),
        origin=origin,
        overrides=overrides,
        file_problem=_file_problem(name, value, root),
    )


def _shown(name: str, value: str) -> str:
    if re.search(_HIDDEN, name):
        return "(not shown)"
    text = _printable(value)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"


def _printable(text: str) -> str:
    """Control characters and bytes that are no UTF-8 spelled out: a carriage return at the end of a value is a fault that must be seen."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)


def _file(path: str, root: Path) -> _Source:
    """What a file of settings gives; nothing if it can't be read, as NCCL does."""
    data = _read(path, root)
    values: dict[str, str] = {}
    for line in data.decode("utf-8", "surrogateescape").split("\n") if isinstance(data, bytes) else ():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values.setdefault(name[:1023], value[:1023])
    return _Source(_printable(path)[:MAX_VALUE], values)


def _file_problem(name: str, value: str, root: Path) -> str | None:
    """Why the file that a value names can't be used; None if it can, or the value names none."""
    if not value or not (name in _FILES or (name in _PLUGINS and "/" in value)):
        return None
    data = _read(value, root, whole=name in _FILES)
    if isinstance(data, str):
        return data
    if not data:
        return "is empty"
    return _stale(data, root) if name == "NCCL_TOPO_FILE" else None


def _stale(data: bytes, root: Path) -> str | None:
    """Whether a topology names GPUs at PCI addresses where this machine has none of its devices."""
    here = names_in(root / "sys/bus/pci/devices")
    named = {pci_bus_id(match.decode()) for match in re.findall(_DEVICE, data)} - {None}
    absent = sorted(bus_id for bus_id in named if bus_id and here is not None and bus_id not in here)
    if not absent:
        return None
    if len(absent) == len(named):
        return f"is of another machine: none of its {len(named)} GPUs is at its address here"
    return f"names GPUs that are not here: {', '.join(absent[:4])}" + (" ..." if len(absent) > 4 else "")


def _read(path: str, root: Path, *, whole: bool = True) -> bytes | str:
    """The content of a regular file, its first byte if not `whole`; or why it can't be read."""
    try:
        below = root / path.lstrip("/") if path.startswith("/") or root != Path("/") else Path(path)
        descriptor = os.open(below, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return "is no regular file"
            return file.read(MAX_FILE_BYTES if whole else 1)
    except FileNotFoundError:
        return "does not exist"
    except (OSError, ValueError) as error:
        return f"can't be read: {(error.strerror if isinstance(error, OSError) else None) or error}"
