"""Values that a command line puts over a configuration file: --parallelism.tensor_parallel_degree 4 of torchtitan, model.num_layers=32 of Hydra.

They count as written; a file that says something else contradicts them, and is refused: which of the two the run took can't be told here.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from preflight.plan.importers.bridge import read_bridge
from preflight.plan.importers.facts import Facts
from preflight.plan.importers.shell_expand import marks
from preflight.plan.importers.torchtitan import read_torchtitan
from preflight.plan.importers.tree import Lines

_TITAN = {"parallelism", "training", "activation_checkpoint", "compile", "experimental", "optimizer"}
_HYDRA = {"model", "train", "trainer", "ddp", "dist", "data", "dataset", "optim", "optimizer", "strategy"}
_NAME = re.compile(r"(--|\+{0,2})([a-z_]\w{0,99}(?:\.\w{1,99}){1,8})(?:=(.*))?", re.DOTALL)


def read_overrides(words: Sequence[str], name: str, line: int) -> Facts:
    """What dotted options of a command say; no default is filled in, since the rest stands in a file. Values are texts."""
    facts = Facts()
    titan: dict[str, Any] = {}
    hydra: dict[str, Any] = {}
    for dashes, path, value in _dotted(words):
        first = path.split(".", 1)[0]
        tree = titan if dashes and first in _TITAN else hydra if not dashes and first in _HYDRA else None
        if tree is not None and marks(value):
            facts.note(f"{name}:{line} {path}: its value is not in the file")
        elif tree is not None:
            _put(tree, path.split("."), value)
    lines = Lines("", name, line)
    for tree, read in ((titan, read_torchtitan), (hydra, read_bridge)):
        found = read(tree, lines) if tree else Facts()
        for key, fact in found.values.items():
            if not fact.default:
                facts.say(key, fact.value, fact.origin)
        for note in found.notes:
            if not any(missing in note for missing in ("is not in it", "are not said", "comes from the tokenizer")):
                facts.note(note)
    return facts


def _dotted(words: Sequence[str]) -> Iterator[tuple[bool, str, str]]:
    """(whether it begins with --, path, value) of each dotted option that has a value."""
    for index, word in enumerate(words):
        match = _NAME.fullmatch(word)
        if match is None:
            continue
        dashes, value = match[1] == "--", match[3]
        if value is None and dashes and index + 1 < len(words) and not re.match(r"--?[A-Za-z]", words[index + 1]):
            value = words[index + 1]
        if value is not None:
            yield dashes, match[2], value


def _put(tree: dict[str, Any], path: Sequence[str], value: str) -> None:
    for key in path[:-1]:
        inner = tree.setdefault(key, {})
        if not isinstance(inner, dict):
            return
        tree = inner
    tree[path[-1]] = value
