"""assert_placement over NCCL: facts travel as tensors on the GPU that the job bound, and name that GPU."""

import json
import os
import subprocess
import sys

import pytest

from preflight.discover.node import discover_node

pytestmark = [pytest.mark.gpu, pytest.mark.fabric, pytest.mark.timeout(300)]

PLAN = '[model]\nparameters = "1B"\nlayers = 4\n[parallel]\ntp = 1\n'
SCRIPT = """
import json, os, sys
import torch
import torch.distributed as dist
import preflight, preflight.in_job
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", init_method="tcp://127.0.0.1:" + sys.argv[2], rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
facts = preflight.in_job.facts.own_facts(dist.get_rank(), dist.get_world_size())
print(json.dumps([preflight.assert_placement(sys.argv[1]), facts.gpu_uuid]), flush=True)
dist.destroy_process_group()
"""


def free_port():
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def test_every_gpu_of_this_node_is_named_by_its_rank(tmp_path):
    gpus = [gpu for gpu in discover_node().gpus or () if gpu.uuid and not gpu.mig_enabled]
    (tmp_path / "job.toml").write_text(PLAN)
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "job.toml"), port],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(len(gpus)),
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(gpus))
    ]
    try:
        said = [json.loads(rank.communicate(timeout=200)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert len({fingerprint for fingerprint, _ in said}) == 1
    assert [uuid for _, uuid in said] == [gpu.uuid for gpu in gpus]
