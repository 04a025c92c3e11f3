"""The page that explains plan files knows every key, and no other."""

import re
from pathlib import Path

import pytest

from preflight.errors import ConfigError
from preflight.plan.planfile import job_of
from preflight.plan.plankeys import CALLED, SECTIONS

PAGE = (Path(__file__).parents[2] / "deploy" / "plans" / "README.md").read_text()


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_a_section_is_explained_and_none_that_is_not_there(section):
    text = PAGE.split(f"## [{section}]")[1].split("\n## ")[0]
    keys = {key for row in re.findall(r"^\| (.+?) \|", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    assert keys == set(SECTIONS[section])


def test_every_plan_file_of_the_folder_is_listed():
    folder = Path(__file__).parents[2] / "deploy" / "plans"
    assert {path.name for path in folder.glob("*.toml")} == set(re.findall(r"`([\w-]+\.toml)` \|", PAGE))


@pytest.mark.parametrize(
    ("section", "written", "key"),
    [
        ("parallel", "tensor_parallel", "tp"),
        ("parallel", "tensor-model-parallel-size", "tp"),
        ("parallel", "vpp", "virtual_stages"),
        ("parallel", "TP", "tp"),
        ("model", "num_layers", "layers"),
        ("training", "gradient_accumulation_steps", "micro_batches"),
        ("training", "seq_lenght", "seq_length"),
    ],
)
def test_a_key_in_a_framework_s_word_is_told_ours(section, written, key):
    with pytest.raises(ConfigError, match=f"did you mean '{key}'"):
        job_of({section: {written: 8}}, "job.toml")


def test_every_word_of_a_framework_stands_for_one_key_that_there_is():
    keys = {key for section in SECTIONS.values() for key in section}
    words = [word for called in CALLED.values() for word in called.split()]
    assert set(CALLED) <= keys
    assert len(words) == len(set(words))
    assert not set(words) & keys
