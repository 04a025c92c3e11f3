"""How many ranks each node gets, and reading the files of launchers."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.errors import ConfigError
from preflight.plan.launchers import deepspeed, mpi, slurm
from preflight.plan.launchers.seats import deal, node_counts, parse_counts, read_entries
from tests.builders import make_job


@pytest.mark.parametrize(
    ("text", "counts"),
    [("2(x3),1", [2, 2, 2, 1]), ("8", [8]), ("8(x2)", [8, 8]), ("7,8(x2)", [7, 8, 8]), ("2, 1(x2)", [2, 1, 1])],
)
def test_run_lengths_are_read_as_slurm_prints_them(text, counts):
    assert parse_counts(text) == counts


@pytest.mark.parametrize("text", ["", "x", "2(x0)", "0", "2(3)", "2,,1", "-1", "2(x3", "9" * 50, "5000", "1(x2000000)"])
def test_what_is_no_list_of_counts_is_refused(text):
    with pytest.raises(ValueError, match=r"is not a number of ranks|is beyond"):
        parse_counts(text)


def counts(text: str | None, names=("a", "b"), gpus_per_node=8) -> list[int]:
    return node_counts(make_job(launch={"tasks_per_node": text}), names, gpus_per_node)


def test_one_bare_number_counts_for_every_node():
    assert counts("4") == [4, 4]
    assert counts(None) == [8, 8]
    assert counts("4,8") == [4, 8]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4(x1)", "'4\\(x1\\)' is for 1 node, but there are 2"),
        ("4(x3)", "is for 3 nodes, but there are 2"),
        ("8,9", "launch.tasks_per_node: 9 ranks on b, which has 8 GPUs"),
        ("many", "'many' is not a number of ranks"),
    ],
)
def test_counts_that_contradict_the_nodes_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        counts(text)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 10))
def test_dealing_goes_round_the_nodes_until_each_has_its_count(counts, size):
    expected: list[tuple[int, int]] = []
    dealt = [0] * len(counts)
    while dealt != counts:
        for node, count in enumerate(counts):
            for _ in range(min(size, count - dealt[node])):
                expected.append((node, dealt[node]))
                dealt[node] += 1
    assert list(zip(*deal(counts, size), strict=True)) == expected


def test_comments_and_empty_lines_say_nothing(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# all\n\n a \nb # second\n")
    assert list(read_entries(path)) == [(3, "a"), (4, "b")]


def test_a_file_that_is_missing_or_no_text_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere: can't be read: No such file"):
        list(read_entries(tmp_path / "nowhere"))
    (tmp_path / "image").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"image: is not UTF-8 text \(byte 0\)"):
        list(read_entries(tmp_path / "image"))


@pytest.mark.parametrize("read", [slurm.read_hostfile, deepspeed.read_hostfile, mpi.read_rankfile])
@given(lines=st.lists(st.one_of(st.text("n1[]-,*=# rankslot+\t", max_size=20), st.text(max_size=8)), max_size=5))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_it_is_read_or_refused_by_name(tmp_path, read, lines):
    path = tmp_path / "hosts"
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    refused = None
    try:
        found = read(str(path))
    except ConfigError as error:
        refused, found = str(error), ()
    assert found if refused is None else refused.startswith(str(path))
