"""Lists of nodes against Slurm's own reading and writing: `scontrol show hostnames`, `hostlist` and `hostlistsorted`. A slurm.conf is enough, no daemon runs."""

import os
import random
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from preflight.model.hostlist import MAX_SLURM_RANGE, fold, fold_for_slurm, natural_key, unfold

pytestmark = pytest.mark.debian("slurm-wlm", "scontrol")

few = settings(max_examples=30, derandomize=True, deadline=None, database=None)
many = settings(max_examples=3000, deadline=None)


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory):
    """What `scontrol show WHAT TEXT` prints; None: it refuses, or complains."""
    conf = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=a Nodes=n1\n")

    def show(what: str, text: str) -> str | None:
        command = ["scontrol", "show", what, text]
        environment = {**os.environ, "SLURM_CONF": str(conf)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        return None if "nvalid" in done.stdout + done.stderr or done.returncode else done.stdout

    return show


def _number(low=0, high=1200):
    """A number as people write it: as it is, or padded to some width."""
    return st.builds(lambda value, width: f"{value:0{width}d}", st.integers(low, high), st.integers(1, 5))


def _range():
    def written(first: str, length: int, width: int) -> str:
        return first if length == 0 else f"{first}-{int(first) + length:0{width}d}"

    return st.builds(written, _number(), st.integers(0, 12), st.integers(1, 5))


text = st.from_regex(r"[a-z]{1,3}-?", fullmatch=True)
bracket = st.lists(_range(), min_size=1, max_size=4).map(lambda ranges: f"[{','.join(ranges)}]")
small = st.lists(_number(0, 30), min_size=1, max_size=3).map(lambda numbers: f"[{','.join(numbers)}]")
plain = st.builds(
    "".join, st.tuples(text, st.one_of(st.just(""), _number()), st.sampled_from(["", "-ib", ".site", "x2"]))
)
one = st.builds("".join, st.tuples(text, bracket))
several = st.builds("".join, st.lists(st.builds("".join, st.tuples(text | st.just(""), small)), min_size=2, max_size=4))
lists = st.lists(st.one_of(plain, one, several), min_size=1, max_size=5).map(",".join)
name = st.one_of(plain, st.builds("".join, st.tuples(st.sampled_from(["n", "m", "r1n"]), _number())))
# runs, as clusters have them, with gaps, repeats and other families between
run = st.builds(
    lambda prefix, first, length, width: [f"{prefix}{i:0{width}d}" for i in range(first, first + length)],
    *(st.sampled_from(["n", "n0", "m", "gpu-"]), st.integers(0, 110), st.integers(1, 15), st.integers(1, 4)),
)
names = st.lists(st.one_of(run, st.lists(name, min_size=1, max_size=3)), min_size=1, max_size=6).map(
    lambda parts: [each for part in parts for each in part]
)


def read_alike(scontrol, folded):
    assert unfold(folded) == scontrol("hostnames", folded).split(), folded


def written_alike(scontrol, given):
    folded = fold_for_slurm(given)
    assert folded == scontrol("hostlist", ",".join(given)).strip()
    assert scontrol("hostnames", folded).split() == unfold(folded) == given


def folded_alike(scontrol, given):
    """For people: the same set, as short as Slurm's own sorted list or nearly so."""
    numbered = sorted({each for each in given if each[-1].isdigit()})
    assert set((scontrol("hostnames", fold(numbered)) or "").split()) == set(numbered)
    assert sorted(unfold(fold(given))) == sorted(set(given))


@few
@given(lists)
@example("n[0-1][0-1][0-1][0-1]")
@example("r[1-2,01-02]x[09-11]n[8-10]")
@example("n[1-3,2],n2,,m")
@example(" n[9-011] , n[001-3]")
def test_lists_are_read_as_slurm_reads_them(scontrol, folded):
    read_alike(scontrol, folded)


@pytest.mark.soak
@many
@given(lists)
def test_thousands_of_lists_are_read_as_slurm_reads_them(scontrol, folded):
    read_alike(scontrol, folded)


@few
@given(names)
@example(["n1", "n01", "n2", "n02", "n2"])
@example(["n08", "n9", "n10", "n099", "n100", "n101", "n0102"])
@example(["n", "n1", "n2", "1", "2", "n1-ib", "n2-ib", "n999999999999999998", "n999999999999999999"])
def test_lists_are_written_as_slurm_writes_them(scontrol, given):
    written_alike(scontrol, given)


@pytest.mark.soak
@many
@given(names)
def test_thousands_of_lists_are_written_as_slurm_writes_them(scontrol, given):
    written_alike(scontrol, given)


@few
@given(names)
def test_lists_for_people_name_the_same_nodes_to_slurm(scontrol, given):
    folded_alike(scontrol, given)


@pytest.mark.soak
@many
@given(names)
def test_thousands_of_lists_for_people_name_the_same_nodes_to_slurm(scontrol, given):
    folded_alike(scontrol, given)


@pytest.mark.parametrize("width", [1, 5])
def test_ten_thousand_names_fold_as_slurm_folds_them(scontrol, width):
    given = [f"n{number:0{width}d}" for number in range(1, 10_001)]
    assert fold_for_slurm(given) == fold(tuple(given)) == scontrol("hostlist", ",".join(given)).strip()
    random.Random(6).shuffle(given)
    assert scontrol("hostnames", fold_for_slurm(given)).split() == given
    assert fold(given) == scontrol("hostlistsorted", ",".join(given)).strip()


def test_a_range_longer_than_slurm_reads_is_written_as_two_and_read_as_one(scontrol):
    given = [f"n{number}" for number in range(1, MAX_SLURM_RANGE + 2)]
    folded = fold_for_slurm(given)
    assert folded == f"n[1-{MAX_SLURM_RANGE},{MAX_SLURM_RANGE + 1}]"
    assert scontrol("hostnames", folded).split() == given
    assert scontrol("hostnames", f"n[1-{MAX_SLURM_RANGE + 1}]") is None
    assert len(unfold(f"n[1-{MAX_SLURM_RANGE + 1}]")) == len(given)


def test_names_may_go_on_after_a_bracket_here_but_not_there(scontrol):
    for folded in ("n[1-2]-ib", "r[1-2]n[1-2]x", "[1-2]n", "a[1-2]b3"):
        assert scontrol("hostnames", folded) is None
        assert len(unfold(folded)) >= 2


@pytest.mark.parametrize("slip", ["n1 n2", "n[1 -2]", "n[1-2", "n[1-2][3", "n]1[", "n[1-]", "n[18446744073709551615]"])
def test_what_looks_like_a_slip_is_refused_here_where_slurm_makes_something_of_it(scontrol, slip):
    assert scontrol("hostnames", slip)
    with pytest.raises(ValueError, match="is not"):
        unfold(slip)


@pytest.mark.parametrize("wrong", ["n[2-1]", "n[]", "n[a-b]", "n[1,2,]", "n[1-3:2]", "n[1x3]", "n[[1-2]]", "n[1-2]]"])
def test_what_slurm_refuses_is_refused(scontrol, wrong):
    assert scontrol("hostnames", wrong) is None
    with pytest.raises(ValueError, match="is not"):
        unfold(wrong)


def test_a_number_beyond_slurms_own_is_a_name_and_no_other_node(scontrol):
    name = "n99999999999999999999"
    assert scontrol("hostnames", name).split() == ["n18446744073709551615"]  # clipped: another node
    assert unfold(name) == [name]


def test_names_sort_as_slurm_sorts_them(scontrol):
    given = ["n10", "n9", "n1", "n2", "a3", "login"]
    assert ",".join(sorted(given, key=natural_key)) == "a3,login,n1,n2,n9,n10"
    assert scontrol("hostlistsorted", ",".join(given)).strip() == "a3,login,n[1-2,9-10]"
