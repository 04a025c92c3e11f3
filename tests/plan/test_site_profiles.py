"""A site changes profiles key by key, or adds some; bad files are refused with file, key and what was expected."""

import pytest

from preflight.errors import ConfigError
from preflight.plan.profiles import find_profile, product_named, profiles_of
from tests.builders import make_inventory

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def site(tmp_path):
    """Writes files into a folder of the site; gives the folders."""

    def write(text: str, name: str = "ours.toml", folder: str = "site"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
        return tuple(sorted(path for path in tmp_path.iterdir() if path.is_dir()))

    return write


def test_a_site_gives_only_what_differs_and_its_value_carries_its_file(site):
    (folder,) = site('name = "h100-80gb"\n[nic_bytes_per_s]\nvalue = 25e9\nsource = "four NICs for eight GPUs"\n')
    profile = profiles_of(make_inventory(), [folder])[H100.casefold()]
    assert profile.name == "H100-80GB"
    assert profile.nic_bytes_per_s.value == 25e9
    assert profile.nic_bytes_per_s.source == f"site ({folder / 'ours.toml'}): four NICs for eight GPUs"
    assert profile.nvlink_bytes_per_s == find_profile("H100-80GB").nvlink_bytes_per_s
    assert find_profile("H100-80GB").nic_bytes_per_s.value == 50e9  # the shipped one stays


def test_tables_by_precision_are_merged_and_lists_are_replaced(site):
    text = """
    name = "H100-80GB"
    [matmul_flops.bf16]
    value = 700e12
    source = "our acceptance run"
    [[nvlink_layouts]]
    gpus = 8
    kind = "switched"
    per_pair = [18]
    per_gpu = 18
    source = "our machines have no board of four"
    """
    profile = find_profile(H100, site(text))
    assert profile.matmul_flops["bf16"].value == 700e12
    assert profile.matmul_flops["fp8"].value == 1382.2e12
    assert [layout.gpus for layout in profile.nvlink_layouts] == [8]


def test_a_new_name_adds_a_profile_that_is_found_by_product_and_by_words(site):
    folders = site('name = "H500-1TB"\ngpu_names = ["NVIDIA H500"]\naliases = ["H500 SXM"]\n')
    assert find_profile("nvidia h500", folders).name == "H500-1TB"
    assert product_named("h500 sxm", folders).name == "NVIDIA H500"
    assert find_profile(H100, folders).name == "H100-80GB"
    assert find_profile("NVIDIA H500") is None


def test_a_later_folder_goes_over_an_earlier_one(site):
    value = 'name = "H100-80GB"\n[power_limit_w]\nvalue = {}\nsource = "s"\n'
    site(value.format(600) + '[pcie_width]\nvalue = 8\nsource = "riser"\n', folder="a")
    profile = find_profile(H100, site(value.format(500), folder="b"))
    assert (profile.power_limit_w.value, profile.pcie_width.value) == (500, 8)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            'name = "H100-80GB"\nnvlink_lnks = 3\n',
            r"ours.toml: nvlink_lnks: unknown key; did you mean 'nvlink_links'\?",
        ),
        ('name = "H100-80GB"\n[power_limit_w]\nvalue = 500\n', "power_limit_w: .*missing required field `source`"),
        ('name = "H100-80GB"\npower_limit_w = 500\n', "power_limit_w: .*Expected `object.*write it as a table"),
        ('name = "H100-80GB"\nfabric = "switch"\n', "fabric: .*Invalid enum value 'switch'"),
        (
            'name = "H100-80GB"\n[power_limit_w]\nvalue = -5\nsource = "s"\n',
            "power_limit_w.value: -5 is not a number of 0",
        ),
        (
            'name = "H100-80GB"\n[power_limit_w]\nvalue = nan\nsource = "s"\n',
            "power_limit_w.value: nan is not a number",
        ),
        ('name = "H100-80GB"\n[power_limit_w]\nvalue = 5\nsource = " "\n', "power_limit_w.source: is empty"),
        ('name = "NEW"\n', "missing required field `gpu_names`"),
        ('gpu_names = ["X"]\n', "name: expected the name of a profile"),
        ('name = "../../etc"\n', "name: expected the name of a profile"),
        ('name = "OURS"\ngpu_names = ["nvidia h100 80gb hbm3"]\n', "is a product of profile H100-80GB too"),
        ("name = \n", "is not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_its_key_though_the_machine_has_no_such_product(site, text, problem):
    with pytest.raises(ConfigError, match=f"(?s){problem}"):
        profiles_of(make_inventory(), site(text))


def test_what_is_no_profile_is_passed_over_and_a_missing_folder_is_said(site, tmp_path):
    (folder,) = site("no TOML", "README.md")
    site("no TOML", ".hidden.toml")
    assert list(profiles_of(make_inventory(), [folder])) == [H100.casefold()]
    with pytest.raises(ConfigError, match="nowhere: can't be listed"):
        profiles_of(make_inventory(), [tmp_path / "nowhere"])


def test_a_folder_of_too_many_files_is_refused(site):
    for number in range(201):
        folders = site("", f"{number}.toml")
    with pytest.raises(ConfigError, match="holds 201 profiles; 200 are allowed"):
        profiles_of(make_inventory(), folders)
