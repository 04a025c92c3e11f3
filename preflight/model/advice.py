"""What to change, as nouns: a repair of a bad placement, or a layout for a job that has none. Both were tried by the rules before they are offered."""

from typing import Literal

from preflight.model.base import Noun
from preflight.model.estimate import Memory
from preflight.model.job import Parallel, Training

ChangeKind = Literal[
    "distribution",  # how the launcher deals ranks to nodes: a flag
    "rendezvous",  # torchrun's rendezvous: a flag
    "master",  # the host of MASTER_ADDR
    "names",  # node names of equal width
    "etp",  # expert tensor parallelism
    "order",  # the order of the axes
    "node_order",  # the order of the nodes, or the node of each rank: a file
    "segment",  # another allocation, in whole segments
    "exclude",  # an allocation without some nodes
    "degrees",  # other degrees
]


class Tally(Noun, frozen=True, kw_only=True, omit_defaults=False):
    """How many findings say what, and how many groups of the axes that need NVLink (tp, cp, ep, etp) lie in more than one domain."""

    fail: int = 0
    unknown: int = 0
    warn: int = 0
    split_groups: int = 0


class Change(Noun, frozen=True, kw_only=True, omit_defaults=False):
    """One thing to change. `title`: one sentence. `paste`: what to type, a flag or a command, exactly; empty where another change's does it too. `filename` and `content`: a file to write
    beside it, None if it needs none. `keys`: key of the plan file -> its new value as TOML; None: take the key out.
    """

    kind: ChangeKind
    title: str
    paste: str
    filename: str | None = None
    content: str | None = None
    keys: dict[str, str | None] = {}


class Advice(Noun, frozen=True, kw_only=True, omit_defaults=False):
    """Changes that, made together, repair a placement, and what the rules said of the job before and after them.

    `complete`: nothing fails any more, and each check that these changes help, or that others could content, is content. Otherwise the repair is
    partial. `left`: what stays wrong, "WARN check: subject", worst first. `step_before_s`, `step_after_s`: the estimated step, None if it is not known.
    """

    changes: tuple[Change, ...]
    before: Tally
    after: Tally
    complete: bool
    left: tuple[str, ...] = ()
    step_before_s: float | None = None
    step_after_s: float | None = None

    @property
    def kinds(self) -> tuple[ChangeKind, ...]:
        """The kinds of the changes, in order."""
        return tuple(change.kind for change in self.changes)

    @property
    def paste(self) -> str:
        """What to type for all of them, one a line."""
        return "\n".join(change.paste for change in self.changes if change.paste)

    @property
    def files(self) -> dict[str, str]:
        """File name -> content of each file that the changes need."""
        return {
            change.filename: change.content
            for change in self.changes
            if change.filename is not None and change.content is not None
        }

    @property
    def title(self) -> str:
        """All changes in one sentence."""
        return "; and ".join(change.title for change in self.changes)


class LayoutAdvice(Noun, frozen=True, kw_only=True, omit_defaults=False):
    """One layout of a ranked list, best first.

    `parallel` and `training`: the sections of the plan file, filled in. `degrees`: every axis with its degree. `memory_bytes` of the most loaded GPU and what a GPU
    has, `memory` in lines where the shape is known. `tokens_per_s` of the whole job. None: not known. `fits`: None if the memory of a GPU is not known.
    `strength`: what speaks for it. `why_behind`: why it comes after the layout before it; empty for the first. `paste`: the same in
    the framework's own words, empty where it has none. `tally` and `left`: what the checks say of it, as in Advice.
    """

    parallel: Parallel
    training: Training
    degrees: dict[str, int]
    memory_bytes: int
    gpu_memory_bytes: int | None
    fits: bool | None
    micro_batches: int
    global_batch_size: int
    idle_share: float
    memory: Memory | None = None
    step_s: float | None = None
    terms_s: dict[str, float] = {}
    tokens_per_s: float | None = None
    mfu: float | None = None
    strength: str = ""
    why_behind: str = ""
    paste: str = ""
    tally: Tally = Tally()
    left: tuple[str, ...] = ()
