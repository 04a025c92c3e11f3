"""Profiles of machine types are found by their name or by NVML's product name; every value has its source; layouts are the ones that healthy machines show."""

import re
import subprocess
import sys

import msgspec
import pytest

from preflight.errors import ConfigError
from preflight.model import Inventory, NvlinkLayout
from preflight.plan.products import NAMES
from preflight.plan.profiles import (
    FOLDER,
    all_profiles,
    find_profile,
    near_profiles,
    product_named,
    profiles_of,
    read_profile,
)
from tests.builders import make_gpu, make_inventory, make_node

SHIPPED = list(all_profiles())


@pytest.mark.parametrize("name", ["H100-80GB", "h100-80gb", "NVIDIA H100 80GB HBM3"])
def test_a_profile_is_found_by_either_name_in_any_case(name):
    profile = find_profile(name)
    assert profile is not None
    assert profile.gpu_memory_bytes is not None
    assert profile.gpu_memory_bytes.value == 80e9


def test_an_unknown_machine_has_no_profile():
    assert find_profile("H100") is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("H100", "did you mean 'H100-64GB' or 'H100-80GB' or 'H100-NVL-94GB' or 'H100-PCIE-80GB'?"),
        ("NVIDIA L40S 96GB", "did you mean 'L40S-48GB'?"),
        ("B200", "did you mean 'B200-180GB'?"),
        ("H100-80G", "did you mean 'H100-80GB'?"),
        ("B20O-180GB", "did you mean 'B200-180GB'?"),
        ("TPU v5", "known: "),
    ],
)
def test_a_name_without_a_profile_is_told_those_of_the_same_product(name, hint):
    assert near_profiles(name).startswith(hint)


def test_every_profile_is_named_as_its_file_and_by_nobody_else():
    assert sorted(profile.name for profile in SHIPPED) == sorted(path.stem for path in FOLDER.glob("*.toml"))
    names = [{name.casefold() for name in (each.name, *each.gpu_names, *each.aliases)} for each in SHIPPED]
    assert sum(map(len, names)) == len(set().union(*names))


def test_the_index_of_names_says_what_stands_in_the_files():
    assert {profile.name: (profile.gpu_names, profile.aliases) for profile in SHIPPED} == NAMES


@pytest.mark.parametrize("profile", SHIPPED, ids=lambda profile: profile.name)
def test_every_value_has_a_source_that_names_something(profile):
    sources = [source for each in profile.sources().values() for source in each]
    assert all(re.search(r"[A-Z0-9].{8,}", source) for source in sources)
    assert len(sources) >= (profile.name != "CPU-only")


@pytest.mark.parametrize("profile", SHIPPED, ids=lambda profile: profile.name)
def test_the_numbers_of_a_profile_agree_with_each_other(profile):
    for layout in profile.nvlink_layouts or ():
        if layout.kind in {"switched", "bridge"} or layout.gpus == 4:
            (pair,) = layout.per_pair
            joined = 1 if layout.kind == "switched" else layout.gpus - 1
            assert layout.per_gpu == pair * joined
        if profile.nvlink_links is not None:
            assert layout.per_gpu == profile.nvlink_links.value
    if profile.nvlink_bytes_per_s is not None:
        # the data sheet's share of one link, 6 % below the line rate at most (payload of the line rate: stas00's measurements)
        per_link = profile.nvlink_bytes_per_s.value / profile.nvlink_links.value
        assert 0.93 < per_link / profile.link_bytes_per_s.value <= 1
    if profile.nvlink_layouts == ():
        assert profile.nvlink_links is None or profile.nvlink_links.value == 0
        assert profile.fabric == "none"
    if profile.nic_bytes_per_s is not None and profile.nic_layouts:
        first = profile.nic_layouts[0]
        assert profile.nic_bytes_per_s.value == first.nics * first.bytes_per_s / first.gpus
    for rate in profile.rates:
        assert rate.gpus >= rate.nodes >= 1
    assert profile.gpu_memory_bytes is None or profile.gpu_memory_bytes.value == pytest.approx(
        float(re.search(r"(\d+)GB", profile.name)[1]) * 1e9
    )


def layout_of(product: str, gpus: int) -> NvlinkLayout | None:
    """The layout for that many GPUs."""
    profile = find_profile(product)
    assert profile is not None
    return next((each for each in profile.nvlink_layouts or () if each.gpus == gpus), None)


@pytest.mark.parametrize(
    ("product", "gpus", "kind", "per_pair", "per_gpu"),
    [
        ("Tesla V100-SXM2-32GB", 8, "cube", (1, 2), 6),  # NVIDIA/nccl-tests issue 29
        ("Tesla V100-SXM3-32GB", 16, "switched", (6,), 6),  # NVIDIA/nccl-tests issue 78
        ("NVIDIA A100-SXM4-40GB", 8, "switched", (12,), 12),  # NVIDIA/nccl issue 1505
        ("NVIDIA A100-SXM4-40GB", 4, "mesh", (4,), 12),  # NVIDIA/nccl issue 595
        ("NVIDIA A800-SXM4-80GB", 8, "switched", (8,), 8),  # NVIDIA/nccl issue 933
        ("NVIDIA A100 80GB PCIe", 2, "bridge", (12,), 12),
        ("NVIDIA H100 80GB HBM3", 8, "switched", (18,), 18),  # NVIDIA/nccl issue 1264
        ("NVIDIA H100 80GB HBM3", 4, "mesh", (6,), 18),  # NVIDIA/nccl issue 1617
        ("NVIDIA H100 NVL", 2, "bridge", (12,), 12),
        ("NVIDIA H800", 8, "switched", (8,), 8),
        ("NVIDIA H200", 8, "switched", (18,), 18),
        ("NVIDIA H200 NVL", 4, "bridge", (6,), 18),
        ("NVIDIA H20", 8, "switched", (18,), 18),  # openucx/ucx issue 10936
        ("NVIDIA B200", 8, "switched", (18,), 18),  # vllm-project/vllm issue 31594
        ("NVIDIA GB200", 4, "switched", (18,), 18),  # sgl-project/sglang issue 11208
        ("NVIDIA RTX A6000", 2, "bridge", (4,), 4),  # NVIDIA/nccl issue 557
    ],
)
def test_healthy_boards_have_their_layout(product, gpus, kind, per_pair, per_gpu):
    layout = layout_of(product, gpus)
    assert layout is not None
    assert (layout.kind, layout.per_pair, layout.per_gpu) == (kind, per_pair, per_gpu)


@pytest.mark.parametrize(
    "product", ["NVIDIA L40S", "Tesla T4", "NVIDIA L20", "NVIDIA GeForce RTX 4090", "Tesla V100-PCIE-32GB", "Tesla P4"]
)
def test_a_card_without_nvlink_says_so_and_an_open_layout_is_not_that(product):
    assert find_profile(product).nvlink_layouts == ()
    assert find_profile("NVIDIA H800 PCIe").nvlink_layouts is None


def test_only_a_rack_has_a_fabric_that_joins_nodes():
    assert [profile.name for profile in SHIPPED if profile.fabric == "rack"] == ["GB200-186GB"]
    assert find_profile("NVIDIA A100-SXM4-80GB").fabric == "manager"
    assert find_profile("NVIDIA H100 80GB HBM3").fabric == "node"


@pytest.mark.parametrize(
    ("text", "profile", "name"),
    [
        ("nvidia h100 80gb hbm3", "H100-80GB", "NVIDIA H100 80GB HBM3"),
        ("H100-80GB", "H100-80GB", "NVIDIA H100 80GB HBM3"),
        ("H100 SXM", "H100-80GB", "NVIDIA H100 80GB HBM3"),
        ("DGX H100", "H100-80GB", "NVIDIA H100 80GB HBM3"),
        ("H100 PCIe", "H100-PCIE-80GB", "NVIDIA H100 PCIe"),
        ("h100 nvl", "H100-NVL-94GB", "NVIDIA H100 NVL"),
        ("a100 80 GB sxm", "A100-80GB", "NVIDIA A100-SXM4-80GB"),
        ("A100-SXM4-80GB", "A100-80GB", "A100-SXM4-80GB"),
        ("Tesla V100-SXM3", "V100-SXM3-32GB", "Tesla V100-SXM3-32GB"),
        ("RTX 4090", "RTX-4090-24GB", "NVIDIA GeForce RTX 4090"),
        ("H20", "H20-96GB", "NVIDIA H20"),
        ("GB200", "GB200-186GB", "NVIDIA GB200"),
    ],
)
def test_a_product_is_found_by_what_people_call_it(text, profile, name):
    found = product_named(text)
    assert found.profile is not None
    assert (found.profile.name, found.name, found.note) == (profile, name, "")


@pytest.mark.parametrize(
    ("text", "name", "note"),
    [
        ("NVIDIA H100", "NVIDIA H100 80GB HBM3", "the driver writes PCIe or NVL into the names of cards"),
        ("NVIDIA H100 (NV18)", "NVIDIA H100 80GB HBM3", "the driver writes PCIe or NVL"),
        ("A800", "NVIDIA A800-SXM4-80GB", "the driver writes PCIe or NVL"),
        ("NVIDIA A100 SXM", "NVIDIA A100-SXM4-40GB", "A100-40GB and A100-80GB are joined alike"),
        ("Tesla V100-SXM2", "Tesla V100-SXM2-16GB", "V100-SXM2-16GB and V100-SXM2-32GB are joined alike"),
    ],
)
def test_what_is_taken_for_granted_about_a_product_is_said(text, name, note):
    found = product_named(text)
    assert found.name == name
    assert found.note.startswith(f"{text!r} is taken as {name}: ")
    assert note in found.note


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("V100", "may be 'Tesla V100-SXM2-16GB' or .* 'Tesla V100-SXM3-32GB', which are joined differently"),
        ("A10O", "is none that we know"),
        ("H100 96GB", "did you mean .*'NVIDIA H100 80GB HBM3'"),
        ("80GB", "is none that we know"),
        ("", "is none that we know"),
        ("SXM4", "is none that we know"),
        ("CPU-only", "a machine without GPUs"),
        ("[" * 5000, "is none that we know"),
    ],
)
def test_a_name_that_may_be_several_products_or_none_is_refused_with_near_ones(text, problem):
    with pytest.raises(ConfigError, match=f"(?s){problem}"):
        product_named(text)


def test_a_name_as_the_driver_writes_it_is_taken_though_it_has_no_profile():
    found = product_named("NVIDIA H500 PCIe ")
    assert (found.profile, found.name, found.note) == (None, "NVIDIA H500 PCIe", "no profile for NVIDIA H500 PCIe")


def test_only_the_products_that_occur_are_looked_up():
    node = msgspec.structs.replace(
        make_node(), gpus=(make_gpu("n", 0), make_gpu("n", 1, name="NVIDIA H500"), make_gpu("n", 2, name=None))
    )
    assert list(profiles_of(Inventory(nodes=(node, make_node("node1"))))) == ["nvidia h100 80gb hbm3"]
    assert profiles_of(make_inventory(2, gpus=0)) == {}
    assert profiles_of(make_inventory(2, gpus=None)) == {}


def test_a_prolog_reads_one_file_and_nothing_heavy():
    code = (
        "import sys; from tests.builders import make_inventory; from preflight.plan import profiles; before = set(sys.modules);"
        "read = []; inner = profiles.read_toml; profiles.read_toml = lambda path: read.append(path.name) or inner(path);"
        "assert len(profiles.profiles_of(make_inventory())) == 1;"
        "print(read, [m for m in set(sys.modules) - before if m.startswith(('difflib', 'numpy', 'importlib.metadata'))])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "['H100-80GB.toml'] []"


def test_a_broken_profile_is_refused_with_the_path_of_the_fault(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text('name = "x"\ngpu_names = []\n[nvlink_links]\nvalue = "many"\nsource = "s"\n')
    with pytest.raises(ConfigError, match=r"x.toml: nvlink_links.value: is not a profile: Expected `float`, got `str`"):
        read_profile(path)
