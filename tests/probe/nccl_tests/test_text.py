"""Text output of nccl-tests: every version's columns, what gets in between, and runs that died."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.probe.nccl_tests.text import read_text
from tests.probe.nccl_tests.writer import GIB, H100, died, log, preface, row, seats, summary, table_head

PAIR = ("node001", "node002")
RATES = {GIB: 91.82, 4 * GIB: 91.9}


def runs(text):
    return read_text(text, source="a.log", folder="logs")


def only(text):
    (run,) = runs(text)
    return run


def rates(run):
    return {row.size_bytes: round(row.out.busbw_bytes_per_s / 1e9, 2) for row in run.rows if row.out}


@pytest.mark.parametrize("version", ["2.17.6", "2.13", "2.0"])
def test_a_log_of_any_version_gives_hosts_rows_and_an_end(version):
    run = only(log(PAIR, RATES, program="all_reduce", version=version))
    assert (run.hosts, run.num_gpus, run.ended, run.failure) == (PAIR, 16, True, None)
    assert rates(run) == {GIB: 91.82, 4 * GIB: 91.9}
    assert run.rows[0].inside is not None
    assert (run.program, run.num_wrong) == ("all_reduce", 0)


def test_seats_have_their_device_bus_and_product():
    seat = only(log(PAIR, RATES)).seats[9]
    assert (seat.rank, seat.host, seat.device, seat.bus, seat.gpu) == (9, "node002", 1, "0000:43:00", H100)


@pytest.mark.parametrize(
    "program", ["all_gather", "reduce_scatter", "sendrecv", "broadcast", "reduce", "alltoall", "gather"]
)
def test_every_program_is_known_by_its_name(program):
    assert only(log(PAIR, RATES, program=program)).program == program


def test_a_program_that_no_line_names_is_told_by_a_command_line_before_it():
    text = "+ mpirun -np 16 ./build/alltoall_perf -b 1G -e 4G\n" + log(PAIR, RATES, version="2.13")
    assert only(text).program == "alltoall"


def test_a_program_that_nothing_tells_is_unnamed_and_all_reduce_is_told_by_its_factor():
    assert only(log(PAIR, RATES, version="2.13")).program == "unnamed"
    assert only(log(PAIR, RATES, version="2.13", program="all_reduce")).program == "all_reduce"


def test_per_iteration_columns_are_not_taken_for_the_other_half():
    run = only(log(PAIR, RATES, per_iteration=True))
    assert rates(run) == {GIB: 91.82, 4 * GIB: 91.9}
    assert run.rows[0].inside.busbw_bytes_per_s == pytest.approx(91.73e9)


def test_a_time_stamp_behind_a_row_is_left_out():
    text = log(PAIR, RATES).replace("N/A\n", "N/A  2026-05-04 10:00:00\n")
    assert rates(only(text)) == RATES


def test_several_gpus_per_process_are_several_seats():
    assert only(log(PAIR, RATES, per_process=8)).num_gpus == 16


@pytest.mark.parametrize("label", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", "[0] ", "node001:0: "])
def test_labels_of_launchers_are_taken_off(label):
    text = "\n".join(label + line for line in log(PAIR, RATES).splitlines())
    run = only(text)
    assert (run.hosts, rates(run)) == (PAIR, RATES)


def test_lines_of_nccl_and_slurm_between_rows_change_nothing():
    noise = (
        "node001:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
        "node001:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
        "srun: Job step creation still disabled, retrying\n"
    )
    run = only("".join(line + "\n" + noise for line in log(PAIR, RATES).splitlines()))
    assert (rates(run), run.hints, run.ended, run.failure) == (RATES, ("NET with GDRDMA",), True, None)
    assert run.settings == ("NCCL_ALGO=Ring",)


def test_a_row_that_nccl_cuts_in_two_is_put_together():
    whole = row("alltoall", 4 * GIB, 91.9, 16)
    start, rest = whole[: whole.index("-1") + 2], whole[whole.index("-1") + 2 :]
    between = "node003:81033:81062 [3] NCCL INFO Channel 04/1 : 3[c1000] -> 4[3000] [send] via NET/IB/0\n"
    lines = [*preface("alltoall"), *seats(PAIR, 8), *table_head(), start + between, rest, *summary("alltoall", 1)]
    assert rates(only("\n".join(lines))) == {4 * GIB: 91.9}


def test_a_row_whose_columns_contradict_one_another_is_no_row():
    text = log(PAIR, RATES).replace("  91.82", "  91.82 ").replace(f"{4 * GIB}", f"{8 * GIB}")
    assert rates(only(text)) == {GIB: 91.82}


def test_a_row_that_was_cut_is_never_half_of_a_row():
    whole = row("alltoall", 4 * GIB, 91.9, 16)
    for length in range(len(whole)):
        lines = [*preface("alltoall"), *seats(PAIR, 8), *table_head(), whole[:length]]
        for run in runs("\n".join(lines)):
            assert all(found.num_wrong in {0, None} for found in run.rows)
            assert set(rates(run)) <= {4 * GIB}
            assert all(value == pytest.approx(91.9, rel=0.02) for value in rates(run).values())


def test_several_tests_in_one_file_are_several_runs():
    text = log(PAIR, RATES, program="alltoall") + log(PAIR, RATES, program="all_reduce") + log(("node001",), RATES)
    found = runs(text)
    assert [(run.program, len(run.hosts)) for run in found] == [("alltoall", 2), ("all_reduce", 2), ("alltoall", 1)]
    assert len({run.source for run in found}) == 3


def test_several_tests_of_an_old_version_in_one_file_are_several_runs():
    text = log(PAIR, RATES, version="2.13", program="all_reduce") * 2
    assert [len(run.rows) for run in runs(text)] == [2, 2]


def test_a_split_run_has_its_groups():
    run = only(log(PAIR, RATES, groups=8))
    assert run.num_groups == 8


def test_a_split_run_that_prints_its_preface_twice_is_one_run():
    text = "\n".join([*preface("all_reduce", version="2.13"), *preface("all_reduce", version="2.13")])
    text += "\n" + log(PAIR, RATES, version="2.13", program="all_reduce")
    assert len(runs(text)) == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "node001: Test NCCL failure common.cu:958 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '",
            "crashed",
        ),
        ("node001:1:1 [0] transport/net.cc:288 NCCL WARN NET/IB : Got completion with error 12", "error"),
        ("[node001:12345] *** Process received signal ***\nSegmentation fault (11)", "crashed"),
        (
            "slurmstepd: error: *** STEP 12.0 ON node001 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
            "timed_out",
        ),
        ("node001: Test timeout (120s) common.cu:700", "timed_out"),
        ("mpirun noticed that process rank 3 with PID 0 on node node002 exited on signal 9 (Killed).", "crashed"),
        ("srun: error: node002: task 9: Killed", "crashed"),
        ("", "error"),
    ],
)
def test_a_run_that_died_has_no_figures_and_says_why(text, kind):
    run = only("\n".join([*preface("alltoall"), *seats(PAIR, 8), text]))
    assert (run.failure, run.rows, run.hosts, run.ended) == (kind, (), PAIR, False)
    assert run.failure_text


def test_the_most_telling_error_is_kept():
    run = only(died(PAIR, text="node001:1:1 [0] NCCL WARN connect failed\nnode001: Test NCCL failure common.cu:1 'x'"))
    assert "Test NCCL failure" in run.failure_text


def test_an_error_after_the_summary_is_no_failure():
    run = only(log(PAIR, RATES) + "mpirun noticed that process rank 3 exited on signal 11 (Segmentation fault).\n")
    assert (run.failure, run.ended) == (None, True)


def test_a_run_that_died_in_the_middle_keeps_the_rows_before():
    lines = log(PAIR, RATES).splitlines()
    run = only("\n".join([line for line in lines if str(4 * GIB) not in line or "max" in line][:-5]))
    assert (rates(run), run.ended, run.failure) == ({GIB: 91.82}, False, "error")


def test_wrong_elements_are_counted():
    run = only(log(PAIR, RATES, wrong=12))
    assert (run.num_wrong, run.rows[0].num_wrong) == (12, 12)


def test_of_an_old_version_the_summary_tells_whether_data_was_wrong():
    right, wrong = log(PAIR, RATES, version="2.0"), log(PAIR, RATES, version="2.0", wrong=248)
    assert (only(right).num_wrong, only(wrong).num_wrong) == (0, 248)


def test_data_that_was_not_checked_is_not_right():
    unchecked = log(PAIR, RATES).replace("      0  ", "    N/A  ")
    assert only(unchecked).num_wrong is None


def test_text_that_is_no_log_gives_nothing():
    for text in ("", "hello\n", "set -e\nmake -j\n", '{"a": 1}', "Rank 1 of 5 stars", "# size\n 1 2 3"):
        assert runs(text) == []


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text):
    runs(text)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3000), st.integers(0, 300), st.text(max_size=20))
def test_a_log_that_was_damaged_never_gives_a_rate_that_is_not_in_it(start, length, junk):
    text = log(PAIR, RATES, program="all_reduce")
    damaged = text[:start] + junk + text[start + length :]
    for run in runs(damaged):
        for found in run.rows:
            for half in (found.out, found.inside):
                if half and half.algbw_bytes_per_s > 1e9:
                    assert half.algbw_bytes_per_s == pytest.approx(found.size_bytes / half.time_s, rel=0.05)
