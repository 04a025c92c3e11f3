"""A product without a profile is said, never failed; one with a profile names the files that it comes from."""

from pathlib import Path

import msgspec
import pytest

from preflight.model import Evidence, Inventory, Node, Profile, Settings, Verdict
from preflight.plan.profiles import profiles_of
from preflight_checks.product_known import CHECK
from tests.builders import H100, make_gpu, make_node, make_plan


def said(*nodes: Node, profiles: dict[str, Profile] | None = None, **others):
    inventory = Inventory(nodes=nodes)
    found = profiles_of(inventory) if profiles is None else profiles
    return list(CHECK.judge(Evidence(inventory=inventory, profiles=found, **others)))


def node_of(*products: str | None, **changes) -> Node:
    gpus = tuple(make_gpu("node0", i, name=name) for i, name in enumerate(products))
    return msgspec.structs.replace(make_node(), gpus=gpus, **changes)


def test_a_known_product_passes_with_its_profile_and_file():
    (finding,) = said(make_node())
    assert finding.verdict is Verdict.PASS
    assert finding.observed == f"8 GPUs: {H100}: profile H100-80GB (preflight/profiles/H100-80GB.toml)"


def test_an_unknown_product_is_a_warning_that_says_what_is_compared_instead():
    (finding,) = said(node_of("NVIDIA H500", "NVIDIA H500"))
    assert finding.verdict is Verdict.WARN
    assert finding.observed == "2 GPUs: no profile for NVIDIA H500: compared with peers only"
    assert "--profiles" in finding.remedy
    assert finding.blames is None


def test_in_a_mixed_machine_nothing_rests_on_the_unknown_product_until_a_job_is_planned():
    mixed = node_of("NVIDIA TITAN V", H100)
    assert [finding.verdict for finding in said(mixed)] == [Verdict.SKIP, Verdict.PASS]
    assert [finding.verdict for finding in said(mixed, plan=make_plan())] == [Verdict.WARN, Verdict.PASS]


@pytest.mark.parametrize(
    ("source", "words"), [("topo", "the file tells no product"), ("node", "the driver tells no product")]
)
def test_a_product_that_nobody_names_is_skipped_with_the_reason(source, words):
    (finding,) = said(node_of(None, None, source=source))
    assert (finding.verdict, finding.observed) == (Verdict.SKIP, f"2 GPUs: {words}: compared with peers only")


def test_gpus_that_could_not_be_opened_are_left_to_another_check():
    broken = make_gpu("node0", 1, name=None, uuid=None)
    (finding,) = said(msgspec.structs.replace(make_node(), gpus=(make_gpu("node0", 0), broken)))
    assert finding.observed.startswith("1 GPU: ")


def test_nothing_is_said_without_gpus_or_where_a_run_on_cpus_is_meant():
    assert said(make_node(gpus=0), make_node("node1", gpus=None)) == []
    assert said(make_node(), settings=Settings(cpu_declared=True)) == []


def test_values_of_a_site_are_named_with_their_file(tmp_path: Path):
    path = tmp_path / "ours.toml"
    path.write_text('name = "H100-80GB"\n[nic_bytes_per_s]\nvalue = 25e9\nsource = "our order of 2026"\n')
    inventory = Inventory(nodes=(make_node(),))
    (finding,) = said(make_node(), profiles=profiles_of(inventory, (tmp_path,)))
    assert finding.observed.endswith(f"(preflight/profiles/H100-80GB.toml; by the site: nic_bytes_per_s in {path})")


def test_a_profile_of_the_site_alone_names_only_its_own_file(tmp_path: Path):
    path = tmp_path / "new.toml"
    path.write_text('name = "H500"\ngpu_names = ["NVIDIA H500"]\n[power_limit_w]\nvalue = 900\nsource = "vendor"\n')
    node = node_of("NVIDIA H500")
    (finding,) = said(node, profiles=profiles_of(Inventory(nodes=(node,)), (tmp_path,)))
    assert (finding.verdict, finding.observed) == (Verdict.PASS, f"1 GPU: NVIDIA H500: profile H500 ({path})")
