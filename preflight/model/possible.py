"""What no machine can say of itself: figures in a saved node that types alone don't exclude, and on which a verdict must not rest. Pure.

Discovery never writes such a thing; a file that holds one was changed, or made up, and is refused rather than judged.
"""

from collections.abc import Iterable, Iterator

from preflight.model.base import Noun
from preflight.model.gpu import Temperature
from preflight.model.inventory import Node

LARGEST = 2**64 - 1  # counters of hardware and kernel have at most 64 bits
MAX_NAME = 1024  # Linux: 64 for a host name; 255 bytes, each spelled out, for the file that gives a node its name
MAX_GPUS, MAX_LINKS, MAX_HCAS, MAX_EVENTS = 256, 64, 1024, 10_000  # discovery stops at 256, 64, 1024 and 2000
MAX_ITEMS = 100_000  # of anything else: processes, interfaces, settings
_MAY_BE_NEGATIVE = (Temperature,)


def impossible(node: Node) -> str | None:
    """Why this can't be a node, with the place in it ("gpus[3].ecc.corrected_volatile: -1 ..."); None if it can."""
    return next(_problems(node), None)


def impossible_nodes(nodes: Iterable[Node]) -> str | None:
    """As `impossible` for nodes that are judged together: each has a name of its own."""
    seen: set[str] = set()
    for position, node in enumerate(nodes):
        problem = "its name is that of another node" if node.name in seen else impossible(node)
        if problem is not None:
            return f"nodes[{position}]: {problem}"
        seen.add(node.name)
    return None


def _problems(node: Node) -> Iterator[str]:
    if not 0 < len(node.name) <= MAX_NAME:
        yield f"name: has {len(node.name)} characters; expected 1 to {MAX_NAME}"
    gpus, events = node.gpus or (), (node.kernel_log.events if node.kernel_log else None) or ()
    for what, number, most in (
        ("gpus", len(gpus), MAX_GPUS),
        ("hcas", len(node.hcas or ()), MAX_HCAS),
        ("kernel_log.events", len(events), MAX_EVENTS),
    ):
        if number > most:
            yield f"{what}: {number} of them; a node has at most {most}"
            return
    indices: set[int] = set()
    for position, gpu in enumerate(gpus):
        if gpu.index in indices:
            yield f"gpus[{position}]: index {gpu.index} is that of another GPU"
        indices.add(gpu.index)
        if len(gpu.links or ()) > MAX_LINKS or len(gpu.peers) > MAX_GPUS:
            yield f"gpus[{position}]: {len(gpu.links or ())} links and {len(gpu.peers)} peers; a GPU has at most {MAX_LINKS} and {MAX_GPUS}"
    yield from _figures(node, "")


def _figures(value: object, place: str, least: int = 0) -> Iterator[str]:
    """The whole numbers below `least` or beyond 64 bits, and the lists without end, in everything that a noun holds."""
    if isinstance(value, int):
        if not least <= value <= LARGEST:
            yield f"{place}: {_shown(value)} can't be; expected {least} to 2^64 - 1"
    elif isinstance(value, Noun):
        least = -LARGEST if isinstance(value, _MAY_BE_NEGATIVE) else 0
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if inner is not None and inner != () and inner is not True and not isinstance(inner, str):
                yield from _figures(inner, f"{place}.{name}" if place else name, least)
    elif isinstance(value, (tuple, dict)):
        if len(value) > MAX_ITEMS:
            yield f"{place}: {len(value)} entries; at most {MAX_ITEMS} are read"
            return
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if not isinstance(inner, str):  # most of them by far
                yield from _figures(inner, f"{place}[{key}]", least)


def _shown(number: int) -> str:
    return str(number) if abs(number) <= LARGEST else f"a number of {number.bit_length()} bits"
