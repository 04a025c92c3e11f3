"""deploy/slurm/README.md tells what is so: every key of the site's file with its default, examples that are understood, scripts that stand beside it."""

import re
from pathlib import Path

import msgspec
import pytest

from preflight.config import SECTIONS, Site, read_config
from preflight.slurm.directive import DEGREES, read_directive
from preflight.slurm.textfile import DRAINS

FOLDER = Path(__file__).parents[2] / "deploy/slurm"
TEXT = (FOLDER / "README.md").read_text()


def section(name):
    """The rows of a section's table: keys -> default as written."""
    part = TEXT.split(f"\n### [{name}]\n")[1].split("\n## ")[0].split("\n### ")[0]
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", part, re.MULTILINE)
    return {key: default.strip() for keys, default in rows for key in re.findall(r"`([a-z_]+)`", keys)}


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_of_the_file_is_told_and_no_other(name):
    assert set(section(name)) == set(SECTIONS[name][1])


@pytest.mark.parametrize("name", SECTIONS)
def test_the_defaults_that_are_told_are_the_defaults(name, tmp_path):
    written = {key: default.strip("`") for key, default in section(name).items() if default.startswith("`")}
    file = tmp_path / "preflight.toml"
    file.write_text(f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in written.items()))
    file.chmod(0o644)
    assert msgspec.structs.replace(read_config(file), source=None) == Site()
    kind = SECTIONS[name][0]()
    given = {field: getattr(kind, field) for field in kind.__struct_fields__}
    plain = {key for key, value in given.items() if value not in (None, ())}
    assert plain <= {key if key in given else f"{key}_s" for key in written}


def test_the_example_file_can_be_read(tmp_path):
    file = tmp_path / "preflight.toml"
    file.write_text(TEXT.split("```toml\n")[1].split("```")[0])
    file.chmod(0o644)
    assert read_config(file).slurm.enforce


def test_the_examples_of_directives_are_understood():
    found = re.findall(r'--comment "([^"]*)"', TEXT)
    assert len(found) >= 4
    for comment in found:
        directive = read_directive(comment, None, None)
        assert directive.problem is None, comment
        assert directive.on is not None
    assert all(f'"{degree}"' in TEXT for degree in DEGREES)


def test_scripts_that_are_named_are_there():
    named = set(re.findall(r"`((?:prolog|health|scan)[a-z-]*\.sh)`", TEXT))
    assert named
    assert all((FOLDER / name).stat().st_mode & 0o111 for name in named)


def test_results_of_a_drain_that_are_named_exist():
    assert set(re.findall(r'result="([a-z-]+)"', TEXT)) <= set(DRAINS)
