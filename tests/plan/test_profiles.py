"""Profiles of machine types are found by their name or by NVML's product name."""

import pytest

from preflight.errors import ConfigError
from preflight.plan.profiles import FOLDER, all_profiles, find_profile, near_profiles, read_profile


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
        ("H100", "did you mean 'H100-80GB'?"),
        ("NVIDIA H100 PCIe", "did you mean 'H100-80GB'?"),
        ("a100", "did you mean 'A100-40GB' or 'A100-80GB'?"),
        ("B200", "did you mean 'B200-180GB'?"),
        ("H100-80G", "did you mean 'H100-80GB'?"),
        ("TPU v5", "known: "),
    ],
)
def test_a_name_without_a_profile_is_told_those_of_the_same_product(name, hint):
    assert near_profiles(name).startswith(hint)


def test_every_profile_is_named_as_its_file_and_by_nobody_else():
    profiles = list(all_profiles())
    assert [profile.name for profile in profiles] == sorted(path.stem for path in FOLDER.glob("*.toml"))
    names = [name.casefold() for profile in profiles for name in (profile.name, *profile.gpu_names)]
    assert len(names) == len(set(names))


def test_every_value_has_a_source():
    for profile in all_profiles():
        for expected in (profile.gpu_memory_bytes, profile.nvlink_links, profile.nvlink_bytes_per_s):
            assert expected is not None
            assert expected.value > 0
            assert len(expected.source) > 10


def test_a_broken_profile_is_refused_with_the_path_of_the_fault(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text('name = "x"\ngpu_names = []\n[nvlink_links]\nvalue = "many"\nsource = "s"\n')
    with pytest.raises(ConfigError, match=r"x.toml: is not a profile: .*nvlink_links.value"):
        read_profile(path)
