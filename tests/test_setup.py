"""`make setup`: what was decided stays until it is decided anew."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """The script as a module, in a folder that has a pyproject.toml and nothing else."""
    spec = importlib.util.spec_from_file_location("preflight_setup", ROOT / "deploy" / "make" / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.chdir(tmp_path)
    for name in ("TORCH", "TORCH_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return module


def test_a_choice_of_torch_is_remembered_where_none_is_given(setup):
    before = {**setup.decisions({}), "torch": "cuda"}
    assert setup.decisions(before) == before


@pytest.mark.parametrize(
    ("before", "given", "decided"),
    [
        ("none", {"TORCH_INDEX": "file:///there"}, ("", "file:///there")),
        ("none", {"TORCH": "cuda"}, ("cuda", "")),
        ("cuda", {"TORCH": "none"}, ("none", "")),
    ],
)
def test_a_new_choice_of_torch_takes_the_place_of_the_old_one(setup, monkeypatch, before, given, decided):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    now = setup.decisions({"torch": before})
    assert (now["torch"], now["torch_index"]) == decided


def test_an_unknown_choice_of_torch_is_refused_with_those_that_are_known(setup, monkeypatch):
    monkeypatch.setenv("TORCH", "rocm")
    with pytest.raises(SystemExit, match=r"TORCH=rocm: expected none .* or cuda"):
        setup.decisions({})


def test_a_changed_pyproject_is_a_reason_to_set_up_again(setup, tmp_path):
    before = setup.decisions({})
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert {key for key, value in setup.decisions(before).items() if value != before[key]} == {"pyproject"}


@pytest.mark.parametrize("stamp", [None, "a line without meaning\n"])
def test_an_environment_whose_set_up_was_cut_short_counts_as_none(setup, stamp):
    setup.VENV.mkdir()
    if stamp:
        setup.STAMP.write_text(stamp)
    assert setup.read_stamp() == {}


@pytest.mark.parametrize(("code", "said"), [(0, ""), (1, "going on without megatron-core==")])
def test_the_peer_of_the_tests_is_installed_without_dependencies_or_left_out(setup, monkeypatch, capsys, code, said):
    asked = []
    monkeypatch.setattr(setup, "pip", lambda *arguments, **_: asked.append(arguments) or code)
    setup.get_megatron()
    assert "--no-deps" in asked[0]
    assert said in capsys.readouterr().out


def test_a_pip_that_fails_ends_the_set_up_with_a_message_and_without_a_stamp(setup, monkeypatch):
    builder = setup.venv.EnvBuilder  # an environment without pip is made at once, and its pip fails for sure
    monkeypatch.setattr(setup.venv, "EnvBuilder", lambda **options: builder(**{**options, "with_pip": False}))
    monkeypatch.setenv("TORCH", "none")
    with pytest.raises(SystemExit, match=r"make setup: pip could not install -e \.\[dev\]"):
        setup.main()
    assert (setup.VENV / "bin" / "python").exists()
    assert not setup.STAMP.exists()
