"""Folded node names are the short form of the same set."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model.hostlist import fold, fold_numbers


def unfold(folded: str) -> set[str]:
    """The names of a list that `fold` made, for names without brackets and commas."""
    names: set[str] = set()
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?|\[[^\]]*\]", folded):
        match = re.fullmatch(r"(.*?)\[(.*)\]", part)
        if match is None:
            names.add(part)
            continue
        for run in match[2].split(","):
            first, _, last = run.partition("-")
            names |= {f"{match[1]}{n:0{len(first)}d}" for n in range(int(first), int(last or first) + 1)}
    return names


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n3", "n1", "n2", "n7"], "n[1-3,7]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["login", "n1", "n2"], "login,n[1-2]"),
        (["n1", "n01"], "n01,n1"),
        (["n1", "n1"], "n1"),
    ],
)
def test_names_are_folded(names, folded):
    assert fold(names) == folded


@given(st.sets(st.from_regex(r"[a-c]{1,2}(0[0-9]|[1-9][0-9]{0,2})?", fullmatch=True), max_size=30))
@settings(max_examples=100)
def test_unfolding_gives_the_same_names(names):
    assert unfold(fold(names)) == names


def test_ranks_are_folded():
    assert fold_numbers([5, 0, 1, 2]) == "0-2,5"
    assert fold_numbers([]) == "none"
    assert fold_numbers([3]) == "3"
