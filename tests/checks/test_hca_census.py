"""hca_census: HCAs are counted where the site says how many its machines have, and nowhere else."""

from msgspec.structs import replace

from preflight.model import Evidence, Finding, Hca, Inventory, NicLayout, Node, Platform, Problem, Settings, Verdict
from preflight.model.profile import Profile
from preflight_checks.hca_census import judge
from tests.builders import H100, make_node

METAL = Platform(virtual_machine="none", container="none")
SITE = "site (/etc/preflight/profiles/h100.toml): our order of 2026"


def machine(number: int | None, *, gpus: int = 8, platform: Platform | None = METAL, **changes) -> Node:
    hcas = None if number is None else tuple(Hca(name=f"mlx5_{i}") for i in range(number))
    return replace(make_node("node1", gpus=gpus), hcas=hcas, platform=platform, **changes)


def judged(node: Node, *, source: str = SITE, **settings) -> list[Finding]:
    layout = NicLayout(gpus=8, nics=4, bytes_per_s=50e9, source=source)
    profile = Profile(name="H100-80GB", gpu_names=(H100,), nic_layouts=(layout,))
    profiles = {H100.casefold(): profile}
    inventory = Inventory(nodes=(node,))
    return list(judge(Evidence(inventory=inventory, profiles=profiles, settings=Settings(**settings))))


def test_a_node_with_all_hcas_of_the_sites_layout_passes_and_so_does_one_with_more():
    for number in (4, 9):
        (finding,) = judged(machine(number))
        assert finding.verdict is Verdict.PASS
        assert finding.observed.startswith(f"{number} HCAs: mlx5_0, mlx5_1")


def test_an_hca_too_few_blames_the_node_and_names_the_sites_word():
    (finding,) = judged(machine(3))
    assert finding.verdict is Verdict.FAIL
    assert finding.observed == "3 HCAs: mlx5_0, mlx5_1, mlx5_2"
    assert finding.expected == f"4 HCAs for 8 GPUs ({SITE})"
    assert (finding.blames.kind, finding.blames.name) == ("node", "node1")
    assert judged(machine(3, platform=None))[0].verdict is Verdict.WARN


def test_a_container_may_not_be_shown_all():
    (finding,) = judged(machine(0, platform=Platform(virtual_machine="none", container="kubernetes")))
    assert finding.verdict is Verdict.UNKNOWN
    assert finding.blames is None


def test_hcas_that_could_not_be_read_are_unknown_with_the_reason():
    problem = Problem(source="/sys/class/infiniband", text="Permission denied", field="hcas")
    (finding,) = judged(machine(None, problems=(problem,)))
    assert (finding.verdict, finding.observed) == (Verdict.UNKNOWN, "HCAs unknown: Permission denied")


def test_only_what_the_site_says_of_that_many_gpus_counts():
    assert judged(machine(3), source="a cloud's machine type") == []
    assert judged(machine(3, gpus=4)) == []
    assert judged(machine(0, gpus=0)) == []
    assert judged(machine(3), cpu_declared=True) == []
