"""Incidents that people reported with the output of nccl-tests, through `preflight judge --nccl-tests`: what a log shows is judged, and what it can't show is unknown.

Figures are the reports', where one is named; that each size gave the same is ours.
"""

import pytest

from preflight.cli.main import run_command_line
from preflight.model import Report, Verdict, from_json
from tests.incidents.live import Judged
from tests.probe.nccl_tests.writer import log, preface, row, seats, summary, table_head

SIZES = [2**power for power in range(26, 34)]


def of(rate):
    """The same rate at each size, in GB/s."""
    return dict.fromkeys(SIZES, rate)


@pytest.fixture
def judge_logs(tmp_path, capsys):
    def run(**logs):
        for name, text in logs.items():
            (tmp_path / f"{name}.log").write_text(text)
        code = run_command_line(["judge", "--nccl-tests", str(tmp_path), "--format", "json"])
        report = from_json(capsys.readouterr().out, Report)
        return code, Judged(report.answer, report.findings), report.evidence.localisation

    return run


def nodes(number):
    return [f"node{i + 1}" for i in range(number)]


@pytest.mark.parametrize(
    ("program", "rates"),
    [("all_reduce", {2: 100.0, 3: 70.0, 4: 58.0, 5: 58.0, 6: 40.0}), ("all_gather", {2: 40.0, 3: 20.0, 4: 40.0})],
    ids=["nccl-tests 169", "nccl 1856"],
)
def test_runs_over_unlike_numbers_of_nodes_are_never_compared(program, rates, judge_logs):
    """NVIDIA/nccl-tests issue 169: 100, 70, 58 and 40 GB/s over 2 to 6 nodes; NVIDIA/nccl issue 1856: 40, 20 and 40 over 2, 3 and 4. Neither blames a node, and neither is healthy for it."""
    logs = {f"over{number}": log(nodes(number), of(rate), program=program) for number, rate in rates.items()}
    code, found, _ = judge_logs(**logs)
    assert code == 3
    assert found.suspected == set()
    assert found.text(Verdict.FAIL) == []
    assert "not enough runs to compare" in found.said("slow_part")


def test_a_group_of_three_is_held_against_other_groups_of_three(judge_logs):
    """NVIDIA/nccl issue 1453: any two nodes are good, three over two racks are not: pairs don't clear a group, and its slowness is no node's."""
    pairs = {f"pair{a}{b}": log([f"node{a}", f"node{b}"], of(380.0)) for a, b in ((1, 2), (1, 3), (2, 3), (3, 4))}
    three = {f"three{n}": log(hosts, of(rate)) for n, (hosts, rate) in enumerate(_three())}
    code, found, _ = judge_logs(**pairs, **three)
    assert code != 0
    assert not any(kind in {"node", "gpu", "nic"} for kind, _ in found.blamed)
    assert "1 run is slow (node[1-3]), 5.00 GB/s" in found.said("slow_part")


def _three():
    return [
        (["node1", "node2", "node3"], 5.0),
        (["node1", "node2", "node4"], 378.0),
        (["node2", "node3", "node4"], 381.0),
    ]


def table(host, rate, gpus=8):
    """The preface, the rows and the end of what one program on one node prints."""
    before = [*preface("all_reduce", least=SIZES[0], most=SIZES[-1]), *seats([host], gpus), *table_head()]
    return before, [row("all_reduce", size, rate, gpus) for size in SIZES], summary("all_reduce", rate)


@pytest.mark.parametrize(("fast", "slow"), [(1.75, 1.68), (3.94, 3.94), (370.0, 90.0)])
@pytest.mark.parametrize("how", ["rows in turn", "tables in turn"])
def test_two_programs_that_each_have_a_rank_0_are_no_run_over_two_nodes(how, fast, slow, judge_logs):
    """NVIDIA/nccl-tests issues 27 and 182: built without MPI, each node prints ranks of its own and its own average. Whose rows are whose can't be told, so none is anybody's."""
    one, two = table("node1", fast), table("node2", slow)
    rows = (
        [*one[1], *two[1]]
        if how == "tables in turn"
        else [r for pair in zip(one[1], two[1], strict=True) for r in pair]
    )
    others = {f"n{i}": log([f"node{i}"], of(370.0), program="all_reduce") for i in (3, 4, 5)}
    code, found, _ = judge_logs(both="\n".join([*one[0], *two[0], *rows, *one[2], *two[2]]) + "\n", **others)
    assert code == 3
    assert found.suspected == set()
    assert found.text(Verdict.FAIL) == []
    said = found.said("logged_runs")
    assert "built without MPI?" in said
    assert {"node1", "node2"} <= {finding.subject for finding in found.of("logged_runs")}


def test_programs_that_ran_one_after_another_keep_their_rows(judge_logs):
    """The same file of single nodes in turn: each is what it says."""
    text = "".join(log([f"node{i}"], of(rate), program="all_reduce") for i, rate in enumerate((370.0, 369.0, 371.0)))
    code, found, _ = judge_logs(all=text)
    assert code == 0
    assert found.text(Verdict.FAIL, Verdict.UNKNOWN) == []


def single_rank(host):
    """What a communicator of one rank prints: bus bandwidth 0, since 2(n-1)/n is 0."""
    half = "    74.5  900.00    0.00       0"
    rows = [f"{size:12d}  {size // 4:12d}     float     sum      -1  {half}  {half}" for size in SIZES]
    return (
        "\n".join([*preface("all_reduce"), *seats([host], 1), *table_head(), *rows, *summary("all_reduce", 0.0)]) + "\n"
    )


@pytest.mark.parametrize("number", [1, 8])
def test_a_communicator_of_one_rank_crosses_no_link(number, judge_logs):
    """NVIDIA/nccl-tests issues 71, 249 and 294: an average of 0 is no fault, and no health either."""
    code, found, localisation = judge_logs(ranks="".join(single_rank("node1") for _ in range(number)))
    assert code == 3
    assert found.text(Verdict.FAIL, Verdict.PASS) == []
    assert any("single GPU" in note for note in localisation.notes)


@pytest.mark.parametrize("version", ["2.0", "2.13", "2.17.6"])
def test_wrong_values_fail_whatever_the_speed(version, judge_logs):
    """NVIDIA/nccl-tests issue 131: out of bounds values 50 FAILED. Old versions have errors like 5e-07 in the place of a count, which are none."""
    text = log(["node1"], of(350.0), program="all_reduce", version=version, wrong=50)
    code, found, _ = judge_logs(wrong=text.replace("1e-06", "5e-07"))
    assert code == 10
    assert set(found.failed) == {"data_correct"}
    assert "wrong.log" in found.said("data_correct")
    right = log(["node1"], of(350.0), program="all_reduce", version=version)
    code, found, _ = judge_logs(wrong=right.replace("1e-06", "5e-07"))
    assert code == 0


def test_an_operation_that_the_log_does_not_name_is_not_given_a_name(judge_logs):
    """The same issue: two GPUs, for which all operations have the same factor."""
    text = log(["node1"], of(11.0), gpus=2, program="all_reduce", version="2.0", wrong=50)
    _, found, _ = judge_logs(pair=text)
    assert "a test that its log doesn't name" in found.said("data_correct")
    assert "broadcast" not in found.said("data_correct")


def test_the_last_size_alone_decides_nothing(judge_logs):
    """NVIDIA/nccl-tests issue 350: bandwidth falls at the largest sizes."""
    falling = {**of(476.0), SIZES[-1]: 300.0}
    everywhere = {name: log([name], falling, program="all_reduce") for name in nodes(4)}
    assert judge_logs(**everywhere)[0] == 0
    here = {name: log([name], falling if name == "node2" else of(475.0), program="all_reduce") for name in nodes(4)}
    code, found, _ = judge_logs(**here)
    assert code == 3
    assert found.blamed == set()
    assert "it shows at 8 GiB and not at 2 GiB, 4 GiB" in found.said("slow_part")


@pytest.mark.parametrize("rate", [367.0, 476.0])
def test_ring_and_nvls_are_both_in_range_of_a_single_node(rate, judge_logs):
    """NVIDIA/nccl-tests issue 290."""
    code, found, _ = judge_logs(one=log(["node1"], of(rate), program="all_reduce"))
    assert code == 0, found.text(Verdict.FAIL, Verdict.UNKNOWN)


def test_what_is_usable_of_nvlink_is_80_percent_of_the_data_sheet(judge_logs):
    """NVIDIA/nccl issue 1054, nccl-tests issues 149, 258 and 331: 230 GB/s of A100's 300; 20 of 25 GB/s per link."""
    text = log(["node1"], of(230.0), program="all_reduce").replace("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    code, found, _ = judge_logs(a100=text)
    assert code == 0, found.text(Verdict.FAIL, Verdict.UNKNOWN)


@pytest.mark.parametrize("bus", ["0x00", "0002:00:01"])
def test_the_device_column_is_no_name_of_a_gpu(bus, judge_logs):
    """NVIDIA/nccl-tests issues 294 and 256: [0x00] for all GPUs of a virtual machine, or with a PCI domain."""
    import re

    logs = {
        f"{a}_{b}": re.sub(r"\[[0-9a-f:x]+\]", f"[{bus}]", log([a, b], of(48.0 if "node2" in (a, b) else 90.0)))
        for a, b in (
            ("node1", "node2"),
            ("node2", "node3"),
            ("node2", "node4"),
            ("node1", "node3"),
            ("node1", "node4"),
            ("node3", "node4"),
        )
    }
    code, found, _ = judge_logs(**logs)
    assert code == 10
    assert found.blamed == {("node", "node2")}
