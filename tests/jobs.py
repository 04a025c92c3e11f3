"""A small training job: real processes under an initialised torch.distributed over gloo, forked from one process that has imported torch."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

_FRAME = """
import gc, json, os, socket, sys, time, traceback
from datetime import timedelta
from pathlib import Path

SIZE, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
import torch
import torch.distributed as dist
import preflight
import preflight.in_job
import preflight.probe.gather
torch.set_num_threads(1)

{body}

listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.listen(SIZE)
port = listening.getsockname()[1]

def serve(rank):
    first = dict(is_master=True, master_listen_fd=listening.fileno()) if rank == 0 else dict(is_master=False)
    store = dist.TCPStore("127.0.0.1", port, world_size=SIZE, timeout=timedelta(seconds=100), wait_for_workers=False, **first)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    dist.barrier()
    began = time.perf_counter()
    try:
        said = {{"value": main(rank)}}
    except Exception as error:
        said = {{"error": type(error).__name__, "text": str(error), "code": getattr(error, "exit_code", None)}}
    said |= {{"rank": rank, "seconds": time.perf_counter() - began}}
    os.write(1, (json.dumps(said) + "\\n").encode())
    if rank == 0:  # it holds the rendezvous: the last to leave
        for other in range(1, SIZE):
            os.waitpid(children[other - 1], 0)

children = []
gc.freeze()  # ranks of a real job share no memory: copying pages is this test's cost, not theirs
for rank in [*range(1, SIZE), 0]:
    pid = 0 if rank == 0 else os.fork()
    if pid:
        children.append(pid)
        continue
    try:
        serve(rank)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(0)
"""


def run_job(size: int, folder: Path, body: str, *, timeout_s: float = 100, **environ: str) -> list[dict[str, Any]]:
    """What `main(rank)` of `body` gave on each rank, in rank order: {"value"} or {"error", "text", "code"}, and {"rank", "seconds"} without the start.

    In `body`, SIZE and FOLDER are there, and dist, preflight, time, os, Path. A rank that never gave anything is missing.
    """
    code = _FRAME.format(body=textwrap.dedent(body))
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(size), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR", **environ},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    said = [json.loads(line) for line in out.splitlines()]
    assert said, err.decode()
    return sorted(said, key=lambda one: one["rank"])


def write_node(root: Path, host: str, boot_id: str) -> Path:
    """A filesystem root of a node without GPUs, as far as a rank looks at it."""
    folder = root / "proc/sys/kernel"
    (folder / "random").mkdir(parents=True)
    (folder / "hostname").write_text(f"{host}\n")
    (folder / "random/boot_id").write_text(f"{boot_id}\n")
    return root
