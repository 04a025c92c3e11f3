"""The page that explains plan files knows every key, and no other."""

import re
from pathlib import Path

import pytest

from preflight.plan.plankeys import SECTIONS

PAGE = (Path(__file__).parents[2] / "deploy" / "plans" / "README.md").read_text()


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_a_section_is_explained_and_none_that_is_not_there(section):
    text = PAGE.split(f"## [{section}]")[1].split("\n## ")[0]
    keys = {key for row in re.findall(r"^\| (.+?) \|", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    assert keys == set(SECTIONS[section])


def test_every_plan_file_of_the_folder_is_listed():
    folder = Path(__file__).parents[2] / "deploy" / "plans"
    assert {path.name for path in folder.glob("*.toml")} == set(re.findall(r"`([\w-]+\.toml)` \|", PAGE))
