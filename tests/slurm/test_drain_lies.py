"""Draining through a scontrol that fails, answers half or nonsense: it is never said that a node is drained that is not, nor is a foreign reason overwritten, nor the brake exceeded."""

import random
import re
import time

import pytest

from preflight.config import Brake, Site, SlurmSite
from preflight.errors import SlurmError
from preflight.slurm import commands
from preflight.slurm.commands import Slurm
from preflight.slurm.drain import drain

REASON = "preflight:xid GPU 0: fell off the bus; replace it [r1, local]"
RECORD = """NodeName={name} Arch=x86_64 CoresPerSocket=1
   Gres=gpu:8
   NodeAddr={name} NodeHostName={name} Version=22.05
   State={state} ThreadsPerCore=1
   Partitions=all,gpu 
   BootTime=2026-11-01T00:00:00 SlurmdStartTime=2026-11-01T00:00:00
   Extra={extra}
   Reason={reason} [root@{now}]

"""  # noqa: W291 - as Slurm prints it
NONSENSE = (
    "",
    "\n",
    "NodeName=",
    "NodeName=n1\n",
    "slurm_load_node error: x\n",
    "<html>\n",
    "NodeName=n1\n   State=\n\n",
)


class Liar:
    """A Slurm of 60 nodes whose scontrol goes wrong as often as `share` says."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.share = self.dice.choice([0, 0.1, 0.3, 0.6, 1])
        self.nodes = {f"n{i}": {"state": "IDLE", "reason": "(null)", "extra": ""} for i in range(1, 61)}

    def ask(self, _program, arguments, _limit_s):
        said, fate = self.really(" ".join(arguments)), self.dice.random()
        if fate < 0.2 * self.share:
            raise SlurmError("no answer within 2 s")
        if fate < 0.5 * self.share:
            return said[: self.dice.randint(0, len(said))], None
        if fate < 0.7 * self.share:
            return self.dice.choice(NONSENSE), None
        return said, ("boom" if fate < 0.8 * self.share else None)

    def really(self, told: str) -> str:
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        if told.startswith("update nodename"):
            names = told.split()[1].partition("=")[2].split(",")
            changes = re.findall(r"(?:^| )(state|extra|reason)=(.*?)(?= (?:state|extra|reason)=|$)", told)
            for name in names:
                self.nodes[name].update(changes)
                self.nodes[name]["state"] = self.nodes[name]["state"].replace("drain", "IDLE+DRAIN")
            return ""
        if told == "show config":
            return f"Configuration data as of {now}\n"
        asked = told.split()[2].split(",") if told != "show node" else list(self.nodes)
        return "".join(RECORD.format(name=name, now=now, **self.nodes[name]) for name in asked)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.soak) for n in range(3, 60))])
def test_a_scontrol_that_lies_drains_nothing_untrue(monkeypatch, tmp_path, seed):
    site = Site(slurm=SlurmSite(enforce=True), brake=Brake(nodes=3, percent=100, jitter_s=0, settle_s=0))
    monkeypatch.setattr(Slurm, "folder", lambda _: tmp_path)
    for number in range(20):
        liar = Liar(100 * seed + number)
        monkeypatch.setattr(commands, "ask", liar.ask)
        drained = liar.dice.randint(0, 3)
        for i in range(drained):
            liar.nodes[f"n{50 + i}"] |= {"state": "IDLE+DRAIN", "reason": REASON}
        foreign = liar.dice.random() < 0.3
        if foreign:
            liar.nodes["n1"] |= {"state": "IDLE+DRAIN", "reason": "disk broken"}
        result = drain(Slurm(ends_at=time.monotonic() + 30), ["n1"], REASON, site)
        here = liar.nodes["n1"]
        assert here["reason"] == ("disk broken" if foreign else here["reason"])
        assert "DRAIN" in here["state"] or not {*result.done, *result.kept, *result.foreign}
        assert here["reason"] == REASON or not result.done
        assert sum(node["reason"] == REASON for node in liar.nodes.values()) <= 3
        if not liar.share and not foreign:
            assert result.done == (("n1",) if drained < 3 else ())
