"""A small cluster in network namespaces: agents in their own, leaves as bridges in one of the fabric's, and links whose rates are what we say (tbf).

Nothing touches the machine's own network: the bridges live in a namespace too, and all goes with the namespaces. Needs root, iproute2 and util-linux.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from preflight.model import Report, from_json
from tests.fleet.agents import _SERVE, write_key
from tests.fleet.runs import PLAN

HEALTHY_MBIT, SICK_MBIT = 200, 100  # far below what two cores can push, so that the links are the bottleneck
PORT = 9947
# short queues, as a switch has them: behind 50 ms of queue, TCP both ways at once swings between 60 and 97 of 100 Mbit/s; behind 5 ms it stays within 90 and 95 (measured).
# A burst below 64 kB makes the kernel cut large segments up, which two cores can't do for many links at once.
_BURST, _LATENCY = "80kb", "5ms"


def sh(*words: str, check: bool = True) -> str:
    """One command; its output."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _htb(mbit: float, most: float) -> list[str]:
    return f"htb rate {mbit}mbit ceil {most}mbit burst {_BURST} cburst {_BURST}".split()


class Box:
    """Nodes n1.. behind leaves, each with one link of HEALTHY_MBIT each way. Use as a context manager."""

    def __init__(
        self, folder: Path, *, leaves: Sequence[int] = (2, 2), per_node: int = 1, rate_mbit: int = HEALTHY_MBIT
    ) -> None:
        self.folder, self.per_node, self.rate_mbit = folder, per_node, rate_mbit
        self.mark = f"pf{secrets.token_hex(3)}"
        self.leaf_of = [leaf for leaf, size in enumerate(leaves) for _ in range(size)]
        self.nodes = [f"n{number + 1}" for number in range(len(self.leaf_of))]
        self.leaves = len(leaves)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    # --- the network -------------------------------------------------------------------------------------------------

    def __enter__(self) -> "Box":  # noqa: PYI034 - Self came with Python 3.11
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        for name in ("fabric", "head", *self.nodes):
            sh("ip", "netns", "add", self.space(name))
            self.inside(name, "ip", "link", "set", "lo", "up")
        for leaf in range(self.leaves):
            self.inside("fabric", "ip", "link", "add", f"leaf{leaf}", "type", "bridge")
            self.inside("fabric", "ip", "link", "set", f"leaf{leaf}", "up")
        for leaf in range(1, self.leaves):  # a chain of leaves is enough for two or three
            up, down = f"up{leaf}", f"down{leaf}"
            self.inside("fabric", "ip", "link", "add", up, "type", "veth", "peer", "name", down)
            for name, bridge in ((up, "leaf0"), (down, f"leaf{leaf}")):
                self.inside("fabric", "ip", "link", "set", name, "master", bridge, "up")
        self._attach("head", 0, 254)
        for number, node in enumerate(self.nodes):
            self._attach(node, self.leaf_of[number], number + 1)
            self.limit(node, self.rate_mbit, "both")

    def _attach(self, name: str, leaf: int, host: int) -> None:
        self.inside(
            "fabric",
            "ip",
            "link",
            "add",
            f"to-{name}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self.space(name),
        )
        self.inside("fabric", "ip", "link", "set", f"to-{name}", "master", f"leaf{leaf}", "up")
        self.inside(name, "ip", "address", "add", f"10.77.0.{host}/24", "dev", "eth0")
        self.inside(name, "ip", "link", "set", "eth0", "up")

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self._end(name)
        for name in (*self.nodes, "head", "fabric"):
            sh("ip", "netns", "delete", self.space(name), check=False)

    def _end(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()

    def space(self, name: str) -> str:
        """The namespace of a node, of "head" (where the coordinator runs) or of "fabric" (where the bridges are)."""
        return f"{self.mark}-{name}"

    def words(self, name: str, *words: str) -> list[str]:
        """A command inside a namespace."""
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/var/run/netns/{self.space(name)}", *words]

    def inside(self, name: str, *words: str) -> str:
        """Run a command inside a namespace; its output."""
        return sh(*self.words(name, *words))

    def address(self, node: str) -> str:
        """The IP address of a node."""
        return f"10.77.0.{self.nodes.index(node) + 1}"

    # --- faults ------------------------------------------------------------------------------------------------------

    def limit(self, node: str, mbit: float, direction: str) -> None:
        """What the node can send, receive, or "both", in Mbit/s."""
        if direction in {"sending", "both"}:
            self._tbf(node, "eth0", mbit)
        if direction in {"receiving", "both"}:
            self._tbf("fabric", f"to-{node}", mbit)

    def limit_uplink(self, leaf: int, mbit: float) -> None:
        """What one leaf's uplink carries, each way, shared evenly among the nodes that send: as the many flows of a real one are, where two alone would share by chance."""
        for device, senders in ((f"up{leaf}", lambda at: at != leaf), (f"down{leaf}", lambda at: at == leaf)):
            nodes = [node for node, at in zip(self.nodes, self.leaf_of, strict=True) if senders(at)]
            tc = ("tc", "class", "add", "dev", device, "parent")
            self.inside("fabric", "tc", "qdisc", "replace", "dev", device, "root", "handle", "1:", "htb")
            self.inside("fabric", *tc, "1:", "classid", "1:1", *_htb(mbit, mbit))
            for number, node in enumerate(nodes, 10):
                self.inside("fabric", *tc, "1:1", "classid", f"1:{number}", *_htb(mbit / len(nodes), mbit))
                self.inside("fabric", *f"tc qdisc add dev {device} parent 1:{number} bfifo limit 100000".split())
                u32 = f"u32 match ip src {self.address(node)}/32 flowid 1:{number}"
                self.inside("fabric", *f"tc filter add dev {device} parent 1: protocol ip {u32}".split())

    def limit_pair(self, node: str, other: str, mbit: float) -> None:
        """What one node can send to one other, in each direction; the rest keeps its rate."""
        for sender, receiver in ((node, other), (other, node)):
            self.inside(
                sender, *("tc", "qdisc", "replace", "dev", "eth0", "root", "handle", "1:", "htb", "default", "1")
            )
            for number, rate in ((1, self.rate_mbit), (2, mbit)):
                self.inside(sender, *f"tc class add dev eth0 parent 1: classid 1:{number} htb rate 10gbit".split())
                tbf = f"tbf rate {rate}mbit burst {_BURST} latency {_LATENCY}"
                self.inside(sender, *f"tc qdisc add dev eth0 parent 1:{number} {tbf}".split())
            u32 = f"u32 match ip dst {self.address(receiver)}/32 flowid 1:2"
            self.inside(sender, *f"tc filter add dev eth0 parent 1: protocol ip {u32}".split())

    def cut(self, node: str) -> None:
        """Take the node's link down."""
        self.inside("fabric", "ip", "link", "set", f"to-{node}", "down")

    def heal(self) -> None:
        """All links as they were in the beginning."""
        for number, node in enumerate(self.nodes):
            self.inside("fabric", "ip", "link", "set", f"to-{node}", "up")
            self.inside(node, "tc", "qdisc", "delete", "dev", "eth0", "root")
            self.limit(node, self.rate_mbit, "both")
            if self.leaf_of[number]:
                for device in (f"up{self.leaf_of[number]}", f"down{self.leaf_of[number]}"):
                    sh(*self.words("fabric", "tc", "qdisc", "delete", "dev", device, "root"), check=False)

    def received_bytes(self, node: str) -> int:
        """What has come to the node over its link so far."""
        return int(self.inside("fabric", "cat", "/proc/net/dev").split(f"to-{node}:")[1].split()[8])

    def wait_for_traffic(self, node: str, num_bytes: int, timeout_s: float = 120) -> None:
        """Until so many bytes more have come to the node."""
        begin, deadline = self.received_bytes(node), time.monotonic() + timeout_s
        while self.received_bytes(node) < begin + num_bytes:
            assert time.monotonic() < deadline, f"no traffic towards {node}"
            time.sleep(0.01)

    def _tbf(self, space: str, device: str, mbit: float) -> None:
        self.inside(
            space,
            *("tc", "qdisc", "replace", "dev", device, "root", "tbf"),
            *("rate", f"{mbit}mbit", "burst", _BURST, "latency", _LATENCY),
        )

    # --- processes ---------------------------------------------------------------------------------------------------

    def start(self, name: str, space: str, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
        """A process of its own group inside a namespace, in place of an earlier one of that name; ended with the box."""
        self._end(name)
        errors = (self.folder / f"{name}.stderr").open("wb")
        process = subprocess.Popen(
            self.words(space, *words), stderr=errors, start_new_session=True, stdin=subprocess.DEVNULL, **options
        )
        errors.close()
        self.processes[name] = process
        return process

    def start_agents(self, **settings: Any) -> None:
        """One agent per node; returns when each has said that it listens. `settings`: of the agent's Settings, beside name, address and port."""
        self.key_file = write_key(self.folder)
        started = []
        for node in self.nodes:
            told = {"name": node, "address": self.address(node), "port": PORT, **settings}
            words = ("-m", "preflight", "agent", "--key-file", str(self.key_file), "--check-every", "0")
            words += tuple(word for name in ("name", "address", "port") for word in (f"--{name}", str(told[name])))
            if settings:
                words = ("-c", _SERVE, json.dumps(told), str(self.key_file))
            started.append(self.start(f"agent-{node}", node, sys.executable, *words, stdout=subprocess.PIPE))
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline().strip(), "an agent did not come up"

    def write_plan(self, *, leaves_told: bool = True) -> Path:
        """The plan file; with a topology.conf that tells which leaf each node is on."""
        text = PLAN.format(tp=1, dp=len(self.nodes) * self.per_node, nodes=len(self.nodes), per_node=self.per_node)
        if leaves_told:
            topology = self.folder / "topology.conf"
            switches = [
                f"SwitchName=leaf{leaf} Nodes={','.join(n for n, at in zip(self.nodes, self.leaf_of, strict=True) if at == leaf)}"
                for leaf in range(self.leaves)
            ]
            topology.write_text("\n".join([*switches, f"SwitchName=spine Switches=leaf[0-{self.leaves - 1}]"]) + "\n")
            text += f'[launch]\ntopology = "{topology}"\n'
        plan = self.folder / "plan.toml"
        plan.write_text(text)
        return plan

    def begin_run(self, *, budget: str = "60s", leaves_told: bool = True) -> "subprocess.Popen[bytes]":
        """`preflight run` from the head's namespace."""
        (self.folder / "out" / "report.json").unlink(missing_ok=True)
        hosts = ",".join(f"{node}={self.address(node)}:{PORT}" for node in self.nodes)
        with (self.folder / "run.stdout").open("wb") as stdout:
            return self.start(
                *(
                    "run",
                    "head",
                    sys.executable,
                    "-m",
                    "preflight",
                    "run",
                    str(self.write_plan(leaves_told=leaves_told)),
                ),
                *(
                    "--hosts",
                    hosts,
                    "--key-file",
                    str(self.key_file),
                    "--budget",
                    budget,
                    "--out",
                    str(self.folder / "out"),
                ),
                stdout=stdout,
            )

    def run(self, *, budget: str = "60s", leaves_told: bool = True) -> Report:
        """A whole run; its report. It ends by its budget."""
        self.begin_run(budget=budget, leaves_told=leaves_told)
        return self.end_run(budget)

    def end_run(self, budget: str = "60s") -> Report:
        """Wait for the run that was begun; its report. It ends within its budget and 10 s."""
        self.processes["run"].wait(float(budget.removesuffix("s")) + 10)
        return self.report()

    def drive(self, rounds: Sequence[Sequence[tuple[int, int, str]]], timeout_s: float = 600) -> list[dict[str, Any]]:
        """Rounds of pairs, run as the coordinator runs them, without planning and judging; what drive.py tells of each."""
        task = {
            "agents": [(node, self.address(node), PORT) for node in self.nodes],
            "key": self.key_file.read_bytes().hex(),
            "rounds": rounds,
        }
        done = subprocess.run(
            self.words("head", sys.executable, "-m", "tests.cluster.drive"),
            cwd=Path(__file__).parents[2],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        figures: list[dict[str, Any]] = json.loads(done.stdout)["rounds"]
        return figures

    def report(self) -> Report:
        """What the last run wrote."""
        path = self.folder / "out" / "report.json"
        assert path.exists(), (self.folder / "run.stderr").read_text()
        return from_json(path.read_bytes(), Report)

    def worker(self, rank: int, timeout_s: float = 30) -> int:
        """The process id of a rank's worker, as soon as it is there: the one of that name that descends from one of our agents."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for pid in descendants([process.pid for process in self.processes.values()]):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() == f"pf-rank-{rank}":
                        return pid
            time.sleep(0.02)
        raise AssertionError(f"no worker of rank {rank} within {timeout_s} s")


def descendants(roots: Sequence[int]) -> list[int]:
    """All processes that descend from these."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found: list[int] = []
    level = list(roots)
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return found


def iperf3_bytes_per_s(box: Box, sender: str, receiver: str, seconds: float = 3) -> float:
    """What iperf3 receives over the same link, one TCP connection, payload bytes per second."""
    server = box.start(f"iperf3-{receiver}", receiver, "iperf3", "-s", "-1", stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while not box.inside(receiver, "ss", "-Hltn", "sport = :5201"):
        assert time.monotonic() < deadline, "iperf3 does not listen"
        time.sleep(0.02)
    text = box.inside(sender, "iperf3", "-c", box.address(receiver), "-t", str(seconds), "-J")
    server.wait(10)
    return float(json.loads(text)["end"]["sum_received"]["bits_per_second"]) / 8
