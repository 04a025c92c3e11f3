"""gpu_speed names a GPU that is slower by itself than its peers, its node where all of them are, and nobody where it can't be told."""

import random

import msgspec
import pytest

from preflight.model import Clocks, Evidence, Failure, GpuAround, Measurement, Probe, Samples, Settings, Verdict
from preflight.model.gpu_rates import asks_of_slow
from preflight_checks.gpu_speed import CHECK
from tests.builders import make_gpu, make_inventory, make_plan, uuids_of
from tests.checks.clusters import said

FLOPS = 2 * 8192**3
HEALTHY = {"matmul": 700e12, "host_to_device": 55e9, "device_to_host": 52e9}


def alone(rank: int, op: str, rate: float, rng: random.Random, *, repeat: int = 0, noise: float = 0.005) -> Measurement:
    """One probe of one GPU; three windows."""
    work = FLOPS if op == "matmul" else 2**28
    probe = Probe(
        subject=f"gpu {rank}",
        axis=None,
        collective=op,
        ranks=(rank,),
        size_bytes=2**28,
        size_source="test",
        repeat=repeat,
        flops=FLOPS if op == "matmul" else 0,
    )
    windows = tuple(work / rate * rng.lognormvariate(0, noise) for _ in range(3))
    return Measurement(
        probe=probe, samples=(Samples(rank=rank, durations_s=windows),), data_correct=True, members=(rank,)
    )


def machines(
    slow=None, *, nodes: int = 2, gpus: int = 4, backend: str = "nccl", repeats: int = 2, noise: float = 0.005
) -> Evidence:
    """A cluster in which the ranks in `slow` have a share of the usual rate, by operation."""
    rng = random.Random(7)
    inventory = make_inventory(nodes=nodes, gpus=gpus)
    plan = make_plan(
        tp=gpus,
        dp=nodes,
        nodes=nodes,
        gpus_per_node=gpus,
        node_names=[node.name for node in inventory.nodes],
        gpu_uuids=uuids_of(inventory) if backend == "nccl" else None,
        gpu=None,
        gpu_memory_bytes=10**12,
        parameters=10**9,
    )
    found = [
        alone(rank, op, rate * (slow or {}).get(rank, {}).get(op, 1.0), rng, repeat=repeat, noise=noise)
        for repeat in range(repeats)
        for rank in range(nodes * gpus)
        for op, rate in HEALTHY.items()
    ]
    return Evidence(
        settings=Settings(backend=backend, cpu_declared=backend == "gloo"),
        plan=plan,
        inventory=inventory,
        measurements=tuple(found),
    )


def test_gpus_that_are_alike_pass_in_one_finding_for_each_operation():
    found = said(CHECK, machines())
    assert {f.verdict for f in found} == {Verdict.PASS}
    assert len(found) == 3
    assert any("TFLOP/s" in f.observed for f in found)


def test_a_gpu_that_computes_slowly_is_named_with_its_figures():
    [finding] = said(CHECK, machines({5: {"matmul": 0.7}}), Verdict.FAIL)
    assert finding.blames.kind == "gpu"
    assert finding.subject == "node1 GPU 1 (GPU-node1-1)"
    assert "491 TFLOP/s, 70% of 7 peers' 699 TFLOP/s" in finding.observed
    assert finding.evidence == ("gpu 5 matmul alone 0",)


def test_a_gpu_that_is_slow_in_two_ways_is_one_finding():
    [finding] = said(CHECK, machines({2: {"host_to_device": 0.5, "device_to_host": 0.5}}), Verdict.FAIL)
    assert "copies to the GPU" in finding.observed
    assert "copies from the GPU" in finding.observed


def test_clocks_and_what_held_them_down_are_told():
    evidence = machines({5: {"matmul": 0.7}})
    around = GpuAround(
        rank=5,
        before=Clocks(sm_mhz=1980, memory_mhz=2619, throttle_reasons=("idle",)),
        after=Clocks(sm_mhz=1200, memory_mhz=2619, throttle_reasons=("sw power cap",)),
    )
    measured = tuple(
        msgspec.structs.replace(m, gpus=(around,)) if m.probe.ranks == (5,) else m for m in evidence.measurements
    )
    [finding] = said(CHECK, msgspec.structs.replace(evidence, measurements=measured), Verdict.FAIL)
    assert "SM clock 1200 MHz, memory clock 2619 MHz, held down by sw power cap" in finding.observed


def test_a_node_all_of_whose_gpus_are_slow_is_blamed_as_one():
    slow = {rank: {"host_to_device": 0.5} for rank in range(4)}
    [finding] = said(CHECK, machines(slow, nodes=4, repeats=3), Verdict.FAIL)
    assert (finding.blames.kind, finding.blames.name) == ("node", "node0")


@pytest.mark.parametrize("share", [0.95, 0.92, 1.3])
def test_a_small_difference_and_a_fast_gpu_are_no_fault(share):
    assert not said(CHECK, machines({3: dict.fromkeys(HEALTHY, share)}), Verdict.FAIL, Verdict.WARN)


def test_another_product_is_compared_with_its_own_kind():
    """Four slower GPUs of another product are no slow GPUs."""
    evidence = machines({rank: dict.fromkeys(HEALTHY, 0.4) for rank in range(4, 8)})
    other = tuple(make_gpu("node1", i, name="NVIDIA A100-SXM4-80GB") for i in range(4))
    nodes = (evidence.inventory.nodes[0], msgspec.structs.replace(evidence.inventory.nodes[1], gpus=other))
    evidence = msgspec.structs.replace(evidence, inventory=msgspec.structs.replace(evidence.inventory, nodes=nodes))
    assert {f.verdict for f in said(CHECK, evidence)} == {Verdict.PASS}


def test_fewer_than_three_peers_tell_nothing():
    found = said(CHECK, machines({0: {"matmul": 0.3}}, nodes=1, gpus=2))
    assert {f.verdict for f in found} == {Verdict.SKIP}


def test_noise_forbids_to_blame():
    found = said(CHECK, machines({5: {"matmul": 0.7}}, noise=0.3, repeats=1))
    assert {f.verdict for f in found} == {Verdict.WARN}
    assert all(f.blames is None for f in found)


def test_processors_are_compared_and_nobody_is_blamed():
    [*_, found] = [said(CHECK, machines({5: {"matmul": 0.5}}, backend="gloo"), Verdict.WARN)]
    assert [f.subject for f in found] == ["matrix product"]
    assert found[0].blames is None
    assert not said(CHECK, machines({5: {"matmul": 0.5}}, backend="gloo"), Verdict.FAIL)


def test_what_failed_or_was_wrong_is_left_to_others():
    evidence = machines()
    broken = [
        msgspec.structs.replace(m, samples=(), failure=Failure(kind="error", text="out of memory"))
        if m.probe.ranks == (3,)
        else m
        for m in evidence.measurements
    ]
    assert {f.verdict for f in said(CHECK, msgspec.structs.replace(evidence, measurements=tuple(broken)))} == {
        Verdict.PASS
    }


# --- one slow probe is none ---


def with_rates(evidence, rates):
    """`rates`: (rank, repeat) -> share of what the matrix product gave there; others stay."""
    changed = []
    for m in evidence.measurements:
        share = rates.get((m.probe.ranks[0], m.probe.repeat), 1.0) if m.probe.collective == "matmul" else 1.0
        samples = tuple(
            msgspec.structs.replace(s, durations_s=tuple(d / share for d in s.durations_s)) for s in m.samples
        )
        changed.append(msgspec.structs.replace(m, samples=samples))
    return msgspec.structs.replace(evidence, measurements=tuple(changed))


def test_one_slow_probe_of_two_blames_nobody_and_is_told():
    found = said(CHECK, with_rates(machines(), {(5, 0): 0.6}))
    assert {f.verdict for f in found} == {Verdict.PASS}
    assert any("1 of 16 probes were slow and not again" in f.observed for f in found)


def test_a_gpu_that_was_measured_once_and_slow_is_unknown():
    [finding] = said(CHECK, machines({5: {"matmul": 0.6}}, repeats=1), Verdict.UNKNOWN, Verdict.FAIL)
    assert (finding.verdict, finding.blames) == (Verdict.UNKNOWN, None)
    assert "too few probes to tell a slow GPU from something passing" in finding.observed
    assert "measured once" in finding.observed


def test_where_probes_are_often_held_up_two_slow_ones_are_not_enough_and_a_third_is_asked_for():
    evidence = machines({5: {"matmul": 0.6}}, nodes=4)
    often = with_rates(evidence, {(0, 0): 0.6, (9, 1): 0.7, (12, 0): 0.8})
    assert not said(CHECK, often, Verdict.FAIL)
    [finding] = said(CHECK, often, Verdict.UNKNOWN)
    assert "3 of 32 probes here were slow and not again" in finding.observed
    asks = asks_of_slow(often)
    assert {(ask.a, ask.b, ask.op) for ask in asks} == {(5, 5, "matmul")}
    rng = random.Random(1)
    more = [alone(5, "matmul", 0.6 * 700e12, rng, repeat=2 + n) for n in range(len(asks))]
    repeated = msgspec.structs.replace(often, measurements=(*often.measurements, *more))
    assert [f.subject for f in said(CHECK, repeated, Verdict.FAIL)] == ["node1 GPU 1 (GPU-node1-1)"]
    assert not asks_of_slow(repeated)
    good = [alone(5, "matmul", 700e12, rng, repeat=2)]
    assert not said(CHECK, msgspec.structs.replace(often, measurements=(*often.measurements, *good)), Verdict.FAIL)


def test_nothing_is_asked_again_of_gpus_that_are_alike_nor_of_processors():
    assert not asks_of_slow(machines())
    assert not asks_of_slow(machines({5: {"matmul": 0.5}}, backend="gloo"))


def test_probes_that_are_held_up_at_random_blame_no_gpu_and_a_slow_gpu_is_named_all_the_same():
    """40 fleets of 128 GPUs, 1 % of their probes 10 to 50 % slow; one GPU 30 % slow in every other fleet. What is asked for is measured, as a run does."""
    evidence = machines(nodes=16, gpus=8, repeats=1)
    named = 0
    for seed in range(40):
        rng = random.Random(seed)
        slow = 37 if seed % 2 else None

        def probe(rank, op, repeat, rng=rng, slow=slow):
            share = 1 - rng.uniform(0.1, 0.5) if rng.random() < 0.01 else 1.0
            share *= 0.7 if (rank, op) == (slow, "matmul") else 1.0
            return alone(rank, op, HEALTHY[op] * share, rng, repeat=repeat, noise=0.015)

        found = [probe(rank, op, repeat) for repeat in range(2) for rank in range(128) for op in HEALTHY]
        for _ in range(2):
            asks = asks_of_slow(msgspec.structs.replace(evidence, measurements=tuple(found)))
            found += [probe(ask.a, ask.op, 2 + place) for place, ask in enumerate(asks)]
        blamed = said(CHECK, msgspec.structs.replace(evidence, measurements=tuple(found)), Verdict.FAIL)
        assert [f.subject for f in blamed] == ([] if slow is None else ["node4 GPU 5 (GPU-node4-5)"]), seed
        named += len(blamed)
    assert named == 20
