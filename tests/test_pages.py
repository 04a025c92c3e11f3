"""What the pages for users and operators tell to type exists: commands, their options, and the files of ours that they name."""

import re
from pathlib import Path

import click
import pytest

from preflight.cli.main import preflight

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "deploy/slurm/README.md", "deploy/systemd/README.md"]


def commands(text):
    """Each command line of preflight on a page: the command, and the words behind it."""
    for said in re.findall(r"(?:^|[\s`/])preflight ((?:[a-z-]+ ?)[^`\n|;&)>]*)", text):
        command, words, names = preflight, said.split(), []
        while words and isinstance(command, click.Group):
            if not re.fullmatch("[a-z-]+", words[0]):
                break
            following = command.get_command(click.Context(command), words[0])
            if following is None:
                break
            command = following
            names.append(words.pop(0))
        if names:
            yield " ".join(names), command, words


@pytest.mark.parametrize("page", PAGES)
def test_options_that_a_page_names_exist(page):
    found = list(commands((ROOT / page).read_text()))
    assert len(found) > (1 if "systemd" in page else 10)
    for name, command, words in found:
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        named = {word.split("=")[0].strip("(,.:") for word in words if re.match(r"\(?--[a-z]", word)}
        assert named <= known, f"{page}: preflight {name}"


@pytest.mark.parametrize("page", PAGES)
def test_files_of_ours_that_a_page_names_are_there(page):
    for name in re.findall(r"`((?:deploy|tests|checks)/[\w./-]+)`", (ROOT / page).read_text()):
        assert (ROOT / name).exists(), name
