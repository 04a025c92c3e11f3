"""What becomes of a job, given what was measured: runs on modelled clusters with planted faults, judged as real ones are."""

import msgspec
import pytest

from preflight.config import Site, SlurmSite
from preflight.discover.mask import read_mask
from preflight.fleet.run import run
from preflight.fleet.simulated import simulated_world
from preflight.model import Finding, Incident, Inventory, Part, Verdict
from preflight.probe.simulate import Fault, plain_cluster
from preflight.registry import load_checks
from preflight.slurm.controller_decide import decide, owner_text, summary
from preflight.slurm.controller_plan import what_to_measure
from preflight.slurm.directive import Directive
from preflight.slurm.reason import check_of, kind_of

CHECKS = load_checks()
USES = {check.name: check.uses for check in CHECKS}


def measured(*faults, leaves=(4, 4), site=None, directive=None, noise=0.01):
    """The report of the run before a job on all nodes of a cluster, and the nodes."""
    world, agents = simulated_world(plain_cluster(leaves, faults=faults, noise=noise), 0, "c.toml")
    nodes = tuple(agent.name for agent in agents)
    gpus = {node: tuple(range(8)) for node in nodes}
    wanted = what_to_measure(nodes, gpus, directive or Directive(), site or Site(), (22, 5))
    report = run(wanted.job, CHECKS, progress=lambda *_: None, budget_s=294, agents=agents, world=world)
    return report, nodes


@pytest.fixture(scope="module")
def slow_node():
    return measured(Fault(kind="node", nodes=("n3",), depth=0.4))


def test_a_healthy_job_starts():
    decision = decide(*measured(), USES)
    assert (decision.course, decision.guilty, decision.let_off) == ("start", {}, ())


def test_a_slow_node_alone_is_guilty_and_it_is_said_what_was_seen_again(slow_node):
    decision = decide(*slow_node, USES, nobody_guilty="hold")
    assert decision.course == "drain"
    assert list(decision.guilty) == ["n3"]
    assert check_of(decision.guilty["n3"]) == "slow_part"
    assert kind_of(decision.guilty["n3"]) == "fabric"
    assert "slow_part on n3" in decision.repeated[0]
    assert " probes of rank 24" in decision.repeated[0]
    assert slow_node[0].run_id in decision.guilty["n3"]
    said = summary(decision, slow_node[1])
    assert "to blame: n3" in said
    assert decision.guilty["n3"].partition(" ")[0] in said
    assert decision.guilty["n3"].partition(" ")[0] not in summary(
        decision, slow_node[1], f"drained n3: {decision.guilty['n3']}"
    ), "the outcome tells the reason, and a line has its limit"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="gpu", ends=(10,), depth=0.4),
        pytest.param(Fault(kind="nic", ends=(10,), depth=0.4), marks=pytest.mark.soak),
    ],
    ids=lambda fault: fault.kind,
)
def test_a_slow_part_of_one_node_drains_that_node(fault):
    decision = decide(*measured(fault), USES)
    assert {node: check_of(reason) for node, reason in decision.guilty.items()} == {"n1": "slow_part"}


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="path", nodes=("n0", "n1"), other_nodes=("n4", "n5"), depth=0.4),
        pytest.param(Fault(kind="leaf", leaf="leaf0", depth=0.4), marks=pytest.mark.soak),
        pytest.param(Fault(kind="uplink", leaf="leaf0", depth=0.4), marks=pytest.mark.soak),
        pytest.param(Fault(kind="slot", slot=3, depth=0.4), marks=pytest.mark.soak),
        Fault(kind="environment", depth=0.5),
    ],
    ids=lambda fault: fault.kind,
)
def test_what_no_node_is_guilty_of_drains_nobody(fault):
    report, nodes = measured(fault)
    assert report.answer == "no-go"
    for choice in ("warn", "hold"):
        decision = decide(report, nodes, USES, nobody_guilty=choice)
        assert (decision.course, decision.guilty) == (choice, {})
        assert decision.text.isascii()
        assert "; do: " in decision.text or ", do: " in decision.text


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="agent_lost", nodes=("n2",)),
        pytest.param(Fault(kind="agent_lost", nodes=("n2",), first_round=6), marks=pytest.mark.soak),
        Fault(kind="hang", ends=(12,)),
        pytest.param(Fault(kind="crash", ends=(12,), first_round=4), marks=pytest.mark.soak),
    ],
    ids=["agent lost", "agent lost later", "worker hangs", "worker crashes"],
)
def test_agents_and_workers_that_do_not_answer_neither_drain_nor_hold(fault):
    report, nodes = measured(fault)
    assert report.answer == "no-go"
    assert decide(report, nodes, USES, nobody_guilty="hold").course == "unknown"


def test_a_node_that_was_slow_for_one_round_is_let_go():
    fault = Fault(kind="transient", nodes=("n2",), depth=0.5, first_round=3, last_round=3)
    assert decide(*measured(fault), USES).guilty == {}


def test_a_host_that_is_busy_is_not_drained_for_slow_copies():
    decision = decide(*measured(Fault(kind="busy", nodes=("n3",), depth=0.5)), USES, nobody_guilty="hold")
    assert decision.course == "unknown"
    assert decision.let_off == (
        "n3 is not drained for gpu_speed: only its copies to and from the host were slow, which a busy host does too",
    )


def test_one_of_two_nodes_is_never_singled_out():
    decision = decide(*measured(Fault(kind="node", nodes=("n1",), depth=0.4), leaves=(2,)), USES)
    assert decision.guilty == {}


def test_a_node_with_other_jobs_is_not_drained_for_what_was_measured(slow_node):
    decision = decide(*slow_node, USES, crowded=frozenset({"n3"}), nobody_guilty="hold")
    assert (decision.course, decision.guilty) == ("unknown", {})
    assert "other jobs run there" in decision.let_off[0]


def test_a_node_whose_agent_was_lost_meanwhile_is_not_drained_for_what_was_measured(slow_node):
    report, nodes = slow_node
    lost = Incident(kind="agent_lost", text="gone", phase="probing", at_s=9.0, node="n3")
    report = msgspec.structs.replace(report, evidence=msgspec.structs.replace(report.evidence, incidents=(lost,)))
    assert decide(report, nodes, USES).guilty == {}


def test_an_interrupted_run_drains_nobody_for_what_was_measured(slow_node):
    report, nodes = slow_node
    assert decide(msgspec.structs.replace(report, partial=True), nodes, USES).guilty == {}


def test_what_was_seen_once_only_drains_nobody(slow_node):
    report, nodes = slow_node
    pairs = {"pair 0-24", "pair 1-25"}  # two probes, and none of one rank twice
    once = {m.probe.ranks: m for m in report.evidence.measurements if m.probe.subject in pairs}
    assert len(once) == 2
    others = tuple(m for m in report.evidence.measurements if not set(range(24, 32)) & set(m.probe.ranks))
    evidence = msgspec.structs.replace(report.evidence, measurements=(*others, *once.values()))
    decision = decide(msgspec.structs.replace(report, evidence=evidence), nodes, USES)
    assert decision.guilty == {}
    assert "seen once only" in decision.let_off[0]


def with_finding(report, **more):
    told = {"check": "row_remap", "subject": "x", "verdict": Verdict.FAIL, "observed": "a row could not be remapped"}
    return msgspec.structs.replace(report, answer="no-go", findings=(Finding(**{**told, **more}), *report.findings))


def test_what_a_check_of_the_site_measured_is_held_against_no_node_that_others_use(healthy):
    report, nodes = healthy
    bad = with_finding(report, check="of_the_site", blames=Part(kind="node", name="n1"))
    uses = {**USES, "of_the_site": ("plan", "measurements")}
    decision = decide(bad, nodes, uses, crowded=frozenset({"n1"}))
    assert (decision.guilty, "other jobs run there" in decision.let_off[0]) == ({}, True)
    assert "seen once only" in decide(bad, nodes, uses).let_off[0]


def gpu_of(report, node, index):
    found = next(each for each in report.evidence.inventory.nodes if each.name == node).gpus[index]
    return f"{node} GPU {index} ({found.uuid})"


@pytest.fixture(scope="module")
def healthy():
    return measured(leaves=(2, 2))


def test_hard_evidence_of_a_gpu_needs_no_repeat(healthy):
    report, nodes = healthy
    bad = with_finding(report, blames=Part(kind="gpu", name=gpu_of(report, "n1", 2)))
    decision = decide(bad, nodes, USES, crowded=frozenset(nodes))
    assert {node: check_of(reason) for node, reason in decision.guilty.items()} == {"n1": "row_remap"}


def test_a_gpu_that_is_another_jobs_drains_nothing_before_this_one(healthy):
    report, nodes = healthy
    ours = [
        msgspec.structs.replace(node, mask=read_mask({"SLURM_JOB_GPUS": "0,1"}, node.gpus))
        for node in report.evidence.inventory.nodes
    ]
    evidence = msgspec.structs.replace(report.evidence, inventory=Inventory(nodes=tuple(ours)))
    report = msgspec.structs.replace(report, evidence=evidence)
    assert decide(with_finding(report, blames=Part(kind="gpu", name=gpu_of(report, "n1", 1))), nodes, USES).guilty
    decision = decide(with_finding(report, blames=Part(kind="gpu", name=gpu_of(report, "n1", 2))), nodes, USES)
    assert (decision.course, decision.guilty) == ("unknown", {})


def test_a_node_of_another_job_is_never_drained(healthy):
    report, nodes = healthy
    bad = with_finding(report, blames=Part(kind="gpu", name=gpu_of(report, "n3", 2)))
    assert decide(bad, [node for node in nodes if node != "n3"], USES).guilty == {}


def test_settings_of_the_agents_surroundings_are_not_laid_on_the_job(healthy):
    report, nodes = healthy
    bad = with_finding(report, check="nccl_settings", blames=Part(kind="environment", name="NCCL_P2P_DISABLE"))
    assert decide(bad, nodes, USES, nobody_guilty="hold").course == "unknown"


def test_a_cyclic_placement_is_the_jobs_and_the_flag_that_mends_it_is_told(tmp_path):
    plan = tmp_path / "plans" / "cyclic.toml"
    plan.parent.mkdir()
    plan.write_text(
        '[model]\nparameters = "8B"\nlayers = 32\nhidden_size = 4096\n[parallel]\ntp = 8\n'
        "[training]\nmicro_batches = 8\nmicro_batch_size = 1\nseq_length = 8192\n"
        '[launch]\ndistribution = "cyclic"\nlauncher = "slurm"\n'
    )
    site = Site(slurm=SlurmSite(plans_dir=str(plan.parent)))
    report, nodes = measured(leaves=(2, 2), site=site, directive=Directive(on=True, plan="cyclic"))
    decision = decide(report, nodes, USES, nobody_guilty="hold")
    assert (decision.course, decision.guilty) == ("hold", {})
    assert "tp_in_nvlink_domain" in decision.text
    assert "srun -m block" in decision.text
    plan.write_text(plan.read_text().replace("cyclic", "block"))
    assert (
        decide(*measured(leaves=(2, 2), site=site, directive=Directive(on=True, plan="cyclic")), USES).course == "start"
    )


def test_degrees_of_which_the_model_is_not_known_are_judged_without_inventing_volumes():
    report, nodes = measured(leaves=(2, 2), directive=Directive(on=True, degrees={"tp": 16}))
    decision = decide(report, nodes, USES, nobody_guilty="hold")
    assert "tp_in_nvlink_domain tp0: ranks 0-15 on 2 nodes" in decision.text
    assert "GB per step" not in decision.text
    assert not {"memory_fit", "axis_cost"} & {f.check for f in report.findings if f.verdict is not Verdict.SKIP}


def test_what_the_owner_reads_is_one_short_line_of_ascii_with_one_finding_of_each_check():
    hostile = Finding(check="x", subject="a", verdict=Verdict.FAIL, observed="caf\u00e9\n`rm`" * 400, remedy="y\x1b[2J")
    text = owner_text([hostile, hostile, msgspec.structs.replace(hostile, check="z", observed="short")])
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= 500
    assert text.endswith("/ +1 more")
