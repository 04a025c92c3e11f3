"""Incidents of where ranks land, by `preflight plan` and what the ranks told of themselves: nothing fails there, and the job is slow or shares GPUs."""

from typing import NamedTuple

import msgspec
import pytest

from preflight.cli.main import run_command_line
from preflight.model import RankFacts

JOB = """
[model]
layers = 32
hidden_size = 4096
ffn_size = 14336
attention_heads = 32
vocab_size = 32000
[parallel]
tp = 8
pp = {pp}
dp = 2
[training]
global_batch_size = 64
micro_batch_size = 1
seq_length = 4096
[hardware]
nodes = {nodes}
gpus_per_node = 8
gpu = "H100-80GB"
{launch}
"""
RACKS = "node leaf rack\nnode7 leaf1 r1\nnode8 leaf1 r1\nnode66 leaf2 r2\nnode70 leaf2 r2\n"
SORTED_AS_TEXT = ("node66", "node7", "node70", "node8")
INTENDED = ("node7", "node8", "node66", "node70")
LAUNCH = '[launch]\nlauncher = "torchrun"\nrendezvous = "c10d"\nhosts = "{}"'.format(",".join(INTENDED))


class Said(NamedTuple):
    """What `preflight plan` said: (check, verdict) -> the findings' texts; and the exit code."""

    code: int
    texts: dict[tuple[str, str], list[str]]

    def of(self, check, verdict):
        return " | ".join(self.texts.get((check, verdict), []))


@pytest.fixture
def lay_out(tmp_path, capsys):
    """`preflight plan` over a job and the ranks that were measured, one host for each."""

    def run(job, hosts, *, gpus=None, racks=None):
        seen: dict[str, int] = {}
        ranks = []
        for rank, host in enumerate(hosts):
            local = seen.setdefault(host, 0)
            seen[host] += 1
            uuid = f"GPU-{host}-{local if gpus is None else gpus[rank]}"
            ranks.append(
                RankFacts(
                    rank=rank, world_size=len(hosts), local_rank=local, host=host, boot_id=f"of {host}", gpu_uuid=uuid
                )
            )
        (tmp_path / "job.toml").write_text(job)
        (tmp_path / "ranks.jsonl").write_bytes(b"".join(msgspec.json.encode(rank) + b"\n" for rank in ranks))
        argv = ["plan", str(tmp_path / "job.toml"), "--ranks", str(tmp_path / "ranks.jsonl"), "--format", "json"]
        if racks:
            (tmp_path / "nodes.txt").write_text(racks)
            argv += ["--topology", str(tmp_path / "nodes.txt")]
        code = run_command_line(argv)
        texts: dict[tuple[str, str], list[str]] = {}
        for each in msgspec.json.decode(capsys.readouterr().out)["findings"]:
            told = f"{each['subject']}: {each['observed']} -> {each.get('remedy', '')}"
            texts.setdefault((each["check"], each["verdict"]), []).append(told)
        return Said(code, texts)

    return run


def by_node(hosts):
    return [host for host in hosts for _ in range(8)]


def test_names_sorted_as_text_put_neighbours_into_other_racks(lay_out):
    """pytorch/pytorch issue 191190: elastic rendezvous sorts the nodes as text; an equivalent order cost 8.4 to 9.3 % of the step on 16 nodes."""
    said = lay_out(JOB.format(pp=2, nodes=4, launch=LAUNCH), by_node(SORTED_AS_TEXT), racks=RACKS)
    assert said.code == 0
    assert said.of("tp_in_nvlink_domain", "PASS")
    spread = said.of("leaf_spread", "WARN")
    assert "16 groups over 2 racks; with the nodes listed rack by rack: 16 groups over 1 rack" in spread
    assert "node[7,66]" in spread
    assert "static rendezvous" in spread
    assert "sorts the names as text" in spread
    names = said.of("host_names", "WARN")
    assert "node66" in names


def test_the_intended_order_is_in_one_rack_each(lay_out):
    """The same job, its ranks where they were meant."""
    launch = LAUNCH.replace('"c10d"', '"static"')
    said = lay_out(JOB.format(pp=2, nodes=4, launch=launch), by_node(INTENDED), racks=RACKS)
    assert said.code == 0
    assert said.of("leaf_spread", "WARN") == ""


def test_a_rule_that_says_must_makes_the_order_a_fault(lay_out):
    """The same with data-parallel peers that must share a rack."""
    must = LAUNCH + '\n[rules]\nleaf_spread = "fail"'
    said = lay_out(JOB.format(pp=2, nodes=4, launch=must), by_node(SORTED_AS_TEXT), racks=RACKS)
    assert said.code == 10
    assert said.of("leaf_spread", "FAIL")


def test_round_robin_splits_every_group_and_shares_every_second_gpu(lay_out):
    """openpmix/prrte issue 674, open-mpi/ompi issue 9850: the default mapping changed between versions. World size 16 and eight ranks on each node look right."""
    said = lay_out(JOB.format(pp=1, nodes=2, launch=""), ["node1", "node2"] * 8, gpus=[rank % 8 for rank in range(16)])
    assert said.code == 10
    split = said.of("tp_in_nvlink_domain", "FAIL")
    assert "tp0: ranks 0-7 on 2 nodes, node[1-2]" in split
    shared = said.of("gpu_per_rank", "FAIL")
    assert "GPU-node1-0: ranks 0,8 on node1 share it" in shared
    for node, places in (("node1", (0, 2, 4, 6)), ("node2", (1, 3, 5, 7))):
        assert all(f"GPU-{node}-{place}" in shared for place in places)
    # binding each task to a GPU of its own would hide the peers that NVLink needs
    assert "--gpus-per-task=1)" not in shared


def test_block_mapping_of_the_same_job_is_right(lay_out):
    said = lay_out(JOB.format(pp=1, nodes=2, launch=""), by_node(("node1", "node2")))
    assert said.code == 0
    assert said.of("tp_in_nvlink_domain", "FAIL") == ""


def test_a_rank_number_modulo_the_gpus_gives_wrong_devices(lay_out):
    """open-mmlab/mmengine issue 973, ACEsuit/mace issue 435: rank modulo GPU count where a node has fewer ranks."""
    hosts = by_node(("node1", "node2"))
    said = lay_out(JOB.format(pp=1, nodes=2, launch=""), hosts, gpus=[(rank * 2) % 8 for rank in range(16)])
    assert said.code == 10
    assert "share it" in said.of("gpu_per_rank", "FAIL")
