"""A process that asks Megatron-Core: one JSON document per line in, one out. Run as a script, since importing megatron takes seconds and warns a lot.

{"dense": {...}, "expert": {...} or null, "kinds": {name: [generator, token]}} -> {"seconds": ..., "cpu_s": ..., "groups": {name: digest}}: RankGenerator's groups.
{"world": ..., "arguments": {...}} -> {"refused": text or null}: what initialize_model_parallel says, under torch's fake backend.
"""

import hashlib
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path


def digest(groups) -> str:
    """Equal for equal lists of groups."""
    return hashlib.sha256(json.dumps(groups, separators=(",", ":")).encode()).hexdigest()


class Peer:
    """The process, as seen from a test."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self

    def ask(self, question):
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=60)


def questions(degrees, order) -> dict:
    """What to ask for every kind of group that Megatron-Core creates. `degrees`, `order` as in a Layout."""
    names = ["tp", "cp", "dp", "pp", "dp-cp", "tp-pp", "tp-cp", "tp-dp", "tp-dp-cp"]
    kinds = {name.replace("-", "_"): ["dense", name] for name in names}
    sizes = {axis: degrees[axis] for axis in ("tp", "cp", "dp", "pp")}
    question = {"dense": {**sizes, "ep": 1, "order": "-".join(order)}, "expert": None, "kinds": kinds}
    if "etp" in degrees:
        expert = {"tp": degrees["etp"], "ep": degrees["ep"], "dp": degrees["edp"], "pp": degrees["pp"], "cp": 1}
        question["expert"] = {**expert, "order": "-".join(order)}
        tokens = {"etp": "tp", "ep": "ep", "edp": "dp", "tp_ep": "tp-ep", "tp_ep_pp": "tp-ep-pp"}
        kinds |= {name: ["expert", token] for name, token in tokens.items()}
    return question


def answer(question):
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if "kinds" in question:
        began, cpu_began = time.perf_counter(), time.process_time()
        made = {
            name: parallel_state.RankGenerator(**question[name])
            for name in ("dense", "expert")
            if question[name] is not None
        }
        groups = {name: made[which].get_ranks(token) for name, (which, token) in question["kinds"].items()}
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
        return {"seconds": seconds, "cpu_s": cpu_s, "groups": {name: digest(some) for name, some in groups.items()}}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=question["world"])
    try:
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **question["arguments"])
        refused = None
    except (AssertionError, RuntimeError) as error:
        refused = str(error) or type(error).__name__
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    return {"refused": refused}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
