"""settings_uniform: who has which setting, between nodes and between the GPUs of one node."""

from msgspec.structs import replace

from preflight.model import UNLIMITED, Clocks, Evidence, Inventory, Limits, Node, Power, Setting, Settings, Verdict
from preflight_checks.settings_uniform import judge
from tests.builders import make_gpu, make_node


def judged(*nodes, **settings):
    return list(judge(Evidence(inventory=Inventory(nodes=nodes), settings=Settings(**settings))))


def with_gpus(name: str, **changes) -> Node:
    """Eight GPUs with these facts; one that is a function gives each GPU's."""
    gpus = (
        make_gpu(name, i, **{fact: value(i) if callable(value) else value for fact, value in changes.items()})
        for i in range(8)
    )
    return replace(make_node(name), gpus=tuple(gpus))


def of(findings, subject):
    [finding] = [f for f in findings if f.subject == subject]
    return finding


def not_passed(findings):
    return [f for f in findings if f.verdict is not Verdict.PASS]


HEALTHY = {"persistence": True, "power": Power(limit_w=700.0), "clocks": Clocks(application_sm_mhz=1980)}


def test_equal_nodes_pass_on_every_setting_that_they_tell():
    nodes = [replace(with_gpus(f"n{i}", **HEALTHY), limits=Limits(memlock_bytes=UNLIMITED)) for i in range(3)]
    findings = judged(*nodes)
    assert not_passed(findings) == []
    assert of(findings, "power limit").observed == "700 W on 3 nodes"
    assert of(findings, "locked-memory limit").observed == "unlimited on 3 nodes"
    assert "size of /dev/shm" not in {f.subject for f in findings}


def test_a_node_with_another_power_limit_is_named_with_its_value():
    findings = judged(*(with_gpus(f"n{i}", power=Power(limit_w=500.0 if i == 2 else 700.0)) for i in range(4)))
    [finding] = not_passed(findings)
    assert (finding.verdict, finding.subject) == (Verdict.WARN, "power limit")
    assert finding.observed == "700 W on n[0-1,3]; 500 W on n2"
    assert (finding.blames.kind, finding.blames.name) == ("environment", "power limit of n2")


def test_one_of_four_gpus_capped_at_half_its_power_is_named_by_uuid():
    node = with_gpus("n0", power=lambda i: Power(limit_w=150.0 if i == 5 else 300.0))
    [finding] = not_passed(judged(node))
    assert finding.subject == "n0 GPU 5 (GPU-n0-5)"
    assert finding.observed == "power limit: 300 W on GPUs 0-4, 6-7; 150 W on GPU 5"
    assert (finding.blames.kind, finding.blames.name) == ("environment", "power limit of n0")  # a setting, not the GPU


def test_modes_are_said_as_enabled_and_disabled():
    findings = judged(with_gpus("n0", ecc_enabled=True), with_gpus("n1", ecc_enabled=False))
    assert of(findings, "ECC mode").observed == "enabled on n0; disabled on n1"
    mixed = judged(with_gpus("n0", mig_enabled=lambda i: i == 0))
    assert not_passed(mixed)[0].observed == "MIG mode: disabled on GPUs 1-7; enabled on GPU 0"


def test_what_a_product_does_not_have_is_no_difference():
    without = with_gpus("n1", mig_enabled=None, unsupported=("mig_enabled",))
    assert not_passed(judged(with_gpus("n0"), without, with_gpus("n2"))) == []


def test_a_part_of_a_fact_that_a_product_does_not_have_is_no_unknown():
    without = with_gpus("n1", clocks=Clocks(sm_mhz=300), unsupported=("application_sm_mhz",))
    full = [with_gpus(name, clocks=Clocks(application_sm_mhz=1980)) for name in ("n0", "n2")]
    assert of(judged(*full, without), "application clock").observed == "1980 MHz on 2 nodes"


def test_a_setting_that_could_not_be_read_is_said_beside_the_others():
    findings = judged(with_gpus("n0"), with_gpus("n1", ecc_enabled=None), with_gpus("n2"))
    assert of(findings, "ECC mode").observed == "enabled on 2 nodes; unknown on n1"


def test_limits_are_compared_and_a_few_megabytes_of_shm_are_not_a_difference():
    def node(name, **limits):
        return replace(make_node(name), limits=Limits(**limits))

    findings = judged(node("n0", memlock_bytes=UNLIMITED), node("n1", memlock_bytes=65536))
    assert of(findings, "locked-memory limit").observed == "unlimited on n0; 65.5 kB on n1"
    near = judged(node("n0", shm_bytes=1_000_000_000_000), node("n1", shm_bytes=1_004_000_000_000))
    assert of(near, "size of /dev/shm").verdict is Verdict.PASS
    far = judged(node("n0", shm_bytes=1_000_000_000_000), node("n1", shm_bytes=64 * 2**20))
    assert of(far, "size of /dev/shm").verdict is Verdict.WARN


def setting(value, origin="environment", name="NCCL_ALGO"):
    return Setting(name=name, value=value, origin=origin)


def test_nccl_settings_that_differ_are_said_with_the_place_they_come_from():
    nodes = [replace(make_node(f"n{i}"), settings=(setting("Ring"),)) for i in range(2)]
    nodes.append(replace(make_node("n2"), settings=(setting("Tree", "/etc/nccl.conf"),)))
    nodes.append(replace(make_node("n3"), settings=()))
    finding = of(judged(*nodes), "NCCL_ALGO")
    assert finding.verdict is Verdict.WARN
    assert finding.observed == (
        "'Ring' on n[0-1]; 'Tree' on n2; not set on n3 ('Ring' from environment on n[0-1]; 'Tree' from /etc/nccl.conf on n2)"
    )


def test_equal_settings_pass_and_those_that_are_a_nodes_own_may_differ():
    nodes = [
        replace(make_node(f"n{i}"), settings=(setting("Ring"), setting(f"n{i}", name="NCCL_HOSTID"))) for i in range(2)
    ]
    assert of(judged(*nodes), "NCCL settings").observed == "1 setting alike on 2 nodes"
    assert not_passed(judged(*nodes)) == []
    unknown = [replace(make_node("n0"), settings=None), replace(make_node("n1"), settings=(setting("Ring"),))]
    assert not_passed(judged(*unknown)) == []


def test_gpus_are_not_compared_where_a_run_without_them_is_meant():
    nodes = [with_gpus("n0", ecc_enabled=True), with_gpus("n1", ecc_enabled=False)]
    assert judged(*nodes, cpu_declared=True) == []


def test_nodes_without_gpus_or_limits_say_nothing():
    assert judged(make_node("n0", gpus=0), make_node("n1", gpus=0)) == []


def test_a_node_whose_own_gpus_differ_is_told_of_once():
    odd = with_gpus("n2", persistence=lambda i: i != 3)
    findings = judged(with_gpus("n0", persistence=True), with_gpus("n1", persistence=True), odd)
    [finding] = not_passed(findings)
    assert finding.subject == "n2 GPU 3 (GPU-n2-3)"
    assert of(findings, "persistence mode").observed == "enabled on 2 nodes; GPUs of n2 differ among themselves"
