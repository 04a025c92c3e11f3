"""Installed checks are found without importlib.metadata, and a broken distribution is named."""

import subprocess
import sys

import pytest

from preflight import registry
from preflight.errors import WorldError

CHECK = """
from preflight.model import Check
def judge(evidence):
    yield from ()
def make(name, **facts):
    return Check(**{**dict(name=name, claim="c", why="w", uses=(), judge=judge), **facts})
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Installs a distribution with one module and one entry point; gives what is loaded then."""

    def install(module: str, body: str, target: str = "CHECKS", distribution: str = "site_checks"):
        (tmp_path / f"{module}.py").write_text(CHECK + body)
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text(
            f"# ours\n[console_scripts]\nx = y:z\n\n[preflight.checks]\nmine = {module}:{target}\n[other]\nmine = nowhere\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def test_our_own_checks_are_found_first_and_named_ours():
    installed = registry.load_checks_with_source()
    assert installed[0].distribution == "cluster-preflight"
    assert {"gpu_count", "node_uniform"} <= {item.check.name for item in installed}


def test_finding_checks_costs_no_importlib_metadata_and_no_heavy_library():
    code = (
        "import sys; from preflight.registry import load_checks; load_checks();"
        "print([m for m in ('importlib.metadata', 'torch', 'numpy', 'aiohttp', 'difflib') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"


def test_a_site_adds_checks_by_installing_a_distribution(site):
    site("site_a", 'CHECKS = (make("site_rule"),)')
    assert ("site_rule", "site-checks") in [(i.check.name, i.distribution) for i in registry.load_checks_with_source()]
    assert registry.load_checks()[-1].name == "site_rule"


def test_a_distribution_that_is_on_the_path_twice_counts_once(site, tmp_path, monkeypatch):
    site("site_b", 'CHECKS = (make("site_rule"),)')
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert [c.name for c in registry.load_checks()].count("site_rule") == 1


def test_an_archive_on_the_path_makes_importlib_look(site, tmp_path, monkeypatch):
    site("site_c", 'CHECKS = (make("site_rule"),)')
    archive = tmp_path / "archive.zip"
    archive.write_bytes(b"PK\x05\x06" + bytes(18))
    monkeypatch.syspath_prepend(str(archive))
    assert {"site_rule", "gpu_count"} <= {c.name for c in registry.load_checks()}


@pytest.mark.parametrize(
    ("module", "body", "complaint"),
    [
        ("bad_import", "import a_module_that_is_not_there", "ModuleNotFoundError"),
        ("bad_exit", "raise SystemExit(0)", "SystemExit"),
        ("bad_missing", "", "AttributeError"),
        ("bad_list", 'CHECKS = [make("x")]', "expected a tuple"),
        ("bad_item", "CHECKS = (1,)", "expected a Check"),
        ("bad_name", 'CHECKS = (make("Bad Name"),)', "metric label"),
        ("bad_uses", 'CHECKS = (make("x", uses=("weather",)),)', "weather"),
        ("bad_judge", 'CHECKS = (make("x", judge=None),)', "not a function"),
    ],
)
def test_a_distribution_whose_checks_cannot_be_loaded_is_an_error_that_names_it(site, module, body, complaint):
    site(module, body)
    with pytest.raises(WorldError) as caught:
        registry.load_checks()
    assert complaint in str(caught.value)
    assert "site-checks" in str(caught.value)


def test_a_doubled_name_is_an_error_that_names_both_distributions(site):
    site("site_d", 'CHECKS = (make("gpu_count"),)')
    with pytest.raises(WorldError, match=r"gpu_count is installed twice: by cluster-preflight and by site-checks"):
        registry.load_checks()


def test_no_checks_at_all_is_an_error_not_an_all_clear(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "not there")])
    with pytest.raises(WorldError, match="no checks are installed"):
        registry.load_checks()


def test_for_nodes_a_distribution_is_asked_for_fewer_checks_if_it_offers_them(site):
    site(
        "few",
        "NODE_CHECKS = (make('node_one'),)\nCHECKS = (*NODE_CHECKS, make('plan_one'))\n",
        distribution="few_checks",
    )
    assert "plan_one" in {check.name for check in registry.load_checks()}
    assert {"node_one", "plan_one"} & {check.name for check in registry.load_checks(of_nodes=True)} == {"node_one"}


def test_for_nodes_a_distribution_that_offers_no_fewer_gives_all(site):
    site("all_of_them", "CHECKS = (make('node_two'), make('plan_two'))\n", distribution="all_checks")
    assert {"node_two", "plan_two"} <= {check.name for check in registry.load_checks(of_nodes=True)}


def test_a_site_brings_profiles_in_a_folder_of_a_distribution_whose_code_is_not_run(tmp_path, monkeypatch):
    package = tmp_path / "site_profiles" / "toml"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("raise RuntimeError('run')\n")
    info = tmp_path / "acme_profiles-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[preflight.profiles]\nacme = site_profiles.toml\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registry.load_profile_folders() == [package]


@pytest.mark.parametrize("target", ["nowhere_at_all", "site_profiles:../../etc", "json.toml"])
def test_an_entry_without_a_folder_of_profiles_names_its_distribution(tmp_path, monkeypatch, target):
    info = tmp_path / "acme_profiles-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(f"[preflight.profiles]\nacme = {target}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WorldError, match=r"profiles of distribution acme-profiles .*no such folder"):
        registry.load_profile_folders()


def test_without_such_distributions_there_are_no_profiles_of_a_site():
    assert registry.load_profile_folders() == []
