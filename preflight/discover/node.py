"""One node: starts what has to be waited for, then reads the rest and puts it together.

Light to import: the modules that read the system are loaded while the driver is being asked.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.discover.hca_run import HcaRun
from preflight.discover.nvml_run import NvmlRun

if TYPE_CHECKING:
    from preflight.model import Node


def discover_node(
    name: str | None = None,
    *,
    root: Path = Path("/"),
    deadline_s: float = 20.0,
    environ: Mapping[str, str] | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> "Node":
    """Everything that can be found out here. Never raises for a broken driver, card or file: the node then says so in `gpu_note` and `problems`.

    `name`: what the launcher or scheduler calls this node, the host name if None. `root`: where /proc, /sys, /dev, /etc and /usr are found
    (a recorded tree, or a host's tree mounted in a container). `deadline_s`: limit for NVML and for everything else, which is read meanwhile, in seconds; a few
    more for killing what hangs and for what depends on NVML's answer. `environ`: the variables of the job or of this process; if None those of this process, and none
    below another root, which is another system's. `meanwhile`: work of the caller to be done while NVML answers; what it raises is passed on.
    """
    taken_at_s = time.time()
    if environ is None:
        environ = dict(os.environ) if root == Path("/") else {}
    with contextlib.closing(NvmlRun(deadline_s)) as run, contextlib.closing(HcaRun(root)) as hca_run:
        from preflight.discover.assemble import assemble
        from preflight.discover.gathering import Gathering

        with contextlib.closing(Gathering(deadline_s)) as gathering:
            return assemble(
                name,
                root=root,
                environ=environ,
                taken_at_s=taken_at_s,
                run=run,
                hca_run=hca_run,
                gathering=gathering,
                meanwhile=meanwhile,
            )
