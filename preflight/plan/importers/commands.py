"""Commands taken apart: launchers, program, options."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from preflight.plan.importers.megatron_names import FLAGS
from preflight.plan.importers.shell_expand import marks

_LAUNCHERS = {
    "srun": "srun",
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "accelerate": "accelerate",
}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.elastic": "torchrun",
}
_SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "w": "nodelist",
    "m": "distribution",
    "G": "gpus",
    "x": "exclude",
    "c": "cpus_per_task",
}


class Invocation(NamedTuple):
    """One command taken apart. `launchers`: in the order of nesting, each with its own words. `program`: the script or module, empty if there is
    none. `arguments`: what follows it.
    """

    launchers: tuple[tuple[str, tuple[str, ...]], ...]
    program: str
    arguments: tuple[str, ...]


def take_apart(words: Sequence[str]) -> Invocation:
    """Splits a command at its launchers and its program."""
    found: list[tuple[str, list[str]]] = []
    index, takes_module = (
        0,
        False,
    )  # -m names a module for Python and for those that start it; for srun it is a distribution
    while index < len(words):
        word = words[index]
        base = word.rsplit("/", 1)[-1]
        takes_module |= base.startswith("python") or base in {"torchrun", "accelerate", "deepspeed"}
        following = words[index + 1] if index + 1 < len(words) else ""
        is_module = word in {"-m", "--module"} and takes_module and following and not following.startswith("-")
        if word == "-m" and following in _MODULES:
            found.append((_MODULES[following], []))
            index += 1
        elif is_module or re.fullmatch(r"[^\0]*\w\.py|.*\0[^\0]*\w\.py", word):
            skip = 2 if word in {"-m", "--module"} else 1
            program = following if skip == 2 else word
            return Invocation(tuple((name, tuple(rest)) for name, rest in found), program, tuple(words[index + skip :]))
        elif base in _LAUNCHERS and not (
            index and words[index - 1] in {"--launcher", "--framework", "--job-name", "-J"}
        ):
            found.append((_LAUNCHERS[base], []))
        elif found:
            found[-1][1].append(word)
        index += 1
    return Invocation(tuple((name, tuple(rest)) for name, rest in found), "", ())


def parse(
    words: Sequence[str], *, one_letter: bool = False, most: int = 1000
) -> tuple[dict[str, str | bool], set[str]]:
    """Options by name in snake case, and the names of those whose value can't be known. `one_letter`: Slurm's, as in -N4 and -N 4.
    `most`: words that one option may take; those of launchers take one.

    >>> parse(["--nnodes=4", "--tee", "3", "--swiglu"])
    ({'nnodes': '4', 'tee': '3', 'swiglu': True}, set())
    """
    found: dict[str, str | bool] = {}
    unknown: set[str] = set()
    index = 0
    while index < len(words):
        word, index = words[index], index + 1
        match = re.fullmatch(r"(--?)([A-Za-z][\w.\-]*?)(?:=(.*))?", word, re.DOTALL)
        if match is None:
            continue
        name, value = match[2].replace("-", "_"), match[3]
        if one_letter and match[1] == "-":
            name, attached = _SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
            value = attached or None
        if value is None:
            end = index
            while end < min(len(words), index + most) and not re.match(r"--?[A-Za-z]", words[end]):
                if words[end].startswith("\0") and (end > index or name in FLAGS):
                    break  # a variable of unknown value: more options, and no part of this one
                end += 1
            value = " ".join(words[index:end]) if end > index else None
            index = end
        found.pop(name, None)
        unknown.discard(name)
        if value is not None and marks(value):
            unknown.add(name)
        else:
            found[name] = True if value is None else value
    return found, unknown
