"""Folded node names are the short form of the same set, and lists are read as Slurm reads them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.model.hostlist import MAX_NODES, fold, fold_numbers, natural_key, unfold


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
        (["gpu-1.site", "gpu-2.site", "gpu-2.other"], "gpu-2.other,gpu-[1-2].site"),
        (["n" + "1" * 5000, "n1", "n2"], "n" + "1" * 5000 + ",n[1-2]"),
        (["r1n1-ib", "r1n2-ib", "r2n1-ib"], "r1n[1-2]-ib,r2n1-ib"),
    ],
)
def test_names_are_folded(names, folded):
    assert sorted(fold(names).split(",")) == sorted(folded.split(","))


@given(
    st.sets(st.from_regex(r"[a-c]{1,2}(0[0-9]|[1-9][0-9]{0,2})?(-ib|\.site)?", fullmatch=True), min_size=1, max_size=30)
)
@settings(max_examples=50)
def test_unfolding_gives_the_same_names(names):
    unfolded = unfold(fold(names))
    assert set(unfolded) == names
    assert len(unfolded) == len(names)


# what `scontrol show hostnames` of Slurm 22.05 prints
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[8-10]", "n8 n9 n10"),
        ("n[08-10]", "n08 n09 n10"),
        ("n[1-010]", "n1 n2 n3 n4 n5 n6 n7 n8 n9 n10"),
        ("n[001-3]", "n001 n002 n003"),
        ("n[1,02]", "n1 n02"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("n[1-2][3-4]", "n13 n14 n23 n24"),
        ("n[1-3,2]", "n1 n2 n3 n2"),
        ("n1,n1", "n1 n1"),
        ("n[1-2],m3", "n1 n2 m3"),
        ("[1-2]", "1 2"),
        ("a,,b", "a b"),
    ],
)
def test_lists_are_read_as_slurm_reads_them(text, names):
    assert unfold(text) == names.split()


def test_a_name_may_go_on_after_a_bracket():
    assert unfold("r[1-2]n[1-2]-ib") == ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]
    assert unfold(" gpu-[9-10].site , login ") == ["gpu-9.site", "gpu-10.site", "login"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no node"),
        (" , ", "names no node"),
        ("n[2-1]", "'2-1' in .* is not a number or a range"),
        ("n[a-b]", "'a-b' in"),
        ("n[]", "is not a number or a range"),
        ("n[1-2", "is not a node name or a list"),
        ("n]1[", "is not a node name or a list"),
        ("n 1", "is not a node name or a list"),
        ("n[1-]", "is not a number or a range"),
        ("n[1-9999999]", "more than"),
        ("n[1-2000]m[1-2000]", "more than"),
        (f"n[{','.join(['1-400000'] * 3)}]", "more than"),
        (",".join(["n[1-400000]"] * 3), "more than"),
        (f"n[{'9' * 30}]", "is not a number or a range"),
    ],
)
def test_what_is_no_list_of_nodes_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        unfold(text)


def test_a_list_of_the_largest_size_is_read():
    assert len(unfold(f"n[1-{MAX_NODES}]")) == MAX_NODES


def test_many_brackets_cost_nothing():
    assert unfold("[1]" * 5000) == ["1" * 5000]


def test_ranks_are_folded():
    assert fold_numbers([5, 0, 1, 2]) == "0-2,5"
    assert fold_numbers([]) == "none"
    assert fold_numbers([3]) == "3"


def test_names_sort_as_people_count():
    assert sorted(["n10", "n2", "n02", "m", "n1-b", "n1"], key=natural_key) == ["m", "n1", "n1-b", "n02", "n2", "n10"]


@given(st.lists(st.text("n019-", max_size=40), max_size=6))
def test_any_names_can_be_sorted(names):
    backwards = names[::-1]
    assert sorted(backwards, key=natural_key) == sorted(names, key=natural_key)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([f"node{i}" for i in range(2000)], "node[0-1999]"),
        ([f"n{i:04}-ib" for i in range(1, 2001)], "n[0001-2000]-ib"),
        ([f"n{i:02}" for i in range(1, 2001)], "n[01-99],n[100-2000]"),
        ([*(f"n{i}" for i in range(1, 2000)), "n5000"], "n[1-1999,5000]"),
        ([*(f"n{i}" for i in range(2, 2001)), "n1"], "n[1-2000]"),
        ([*(f"n{i}" for i in range(1000)), *(f"m{i}" for i in range(1000, 2000))], "m[1000-1999],n[0-999]"),
    ],
)
def test_many_names_fold_as_few_do(names, folded):
    assert fold(tuple(names)) == fold(list(names))
    assert sorted(unfold(fold(tuple(names)))) == sorted(unfold(folded)) == sorted(names)


def test_no_text_of_some_kilobytes_stands_for_gigabytes():
    for text in ("a" * 2000 + "[1-100000]", "[1-2]" * 6 + "a" * 5000 + "[1-50000]"):
        with pytest.raises(ValueError, match="more than 1024 letters"):
            unfold(text)
