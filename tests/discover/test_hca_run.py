"""Whatever a card or the child that reads it does, the devices come back in time, and those that answered are kept."""

import contextlib
import sys
import textwrap

import msgspec
import pytest

from preflight.discover.hca_run import HcaRun
from preflight.discover.infiniband import HcaReading, read_hcas
from preflight.model import Hca, Problem
from tests.trees import Tree


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path)
    for number in (0, 1, 2, 10):
        made.port(made.hca(f"mlx5_{number}", made.pci(f"pci0000:10/0000:10:01.0/0000:{0x30 + number:02x}:00.0")))
    return made


def line(name, *problems):
    return (msgspec.json.encode(HcaReading((Hca(name=name),), problems)) + b"\n").decode()


def run_program(tree, code, *, total_s=10.0, limit_s=5.0):
    with contextlib.closing(HcaRun(tree.root, [sys.executable, "-c", textwrap.dedent(code)], limit_s)) as run:
        return run.result(total_s)


def test_the_child_tells_what_this_process_would_read(tree):
    with contextlib.closing(HcaRun(tree.root)) as run:
        assert run.result(20.0) == read_hcas(tree.root)
    assert [hca.name for hca in read_hcas(tree.root).hcas] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10"]


def test_without_devices_there_is_no_child_and_nothing_is_told(tmp_path):
    assert HcaRun(tmp_path).result(1.0) is None


def test_a_card_that_hangs_costs_itself_and_the_next_ones_are_asked_anew(tree):
    """Each child tells one device and then hangs: two of four are told, two are not."""
    told = tree.root / "told"
    code = f"""
        import pathlib, time
        told = pathlib.Path({str(told)!r})
        first = not told.exists()
        told.write_text("x")
        print("ready\\n" + ({line("mlx5_0")!r} if first else {line("mlx5_2")!r}), end="", flush=True)
        time.sleep(600)
    """
    reading = run_program(tree, code, limit_s=2.0)
    assert [hca.name for hca in reading.hcas] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10"]
    assert [problem.source for problem in reading.problems] == [
        "/sys/class/infiniband/mlx5_1",
        "/sys/class/infiniband/mlx5_10",
    ]
    assert "did not answer within 2 s" in reading.problems[0].text


def test_when_the_time_is_over_the_other_devices_are_not_read(tree):
    code = f"""
        import time
        print("ready\\n" + {line("mlx5_0")!r}, end="", flush=True)
        time.sleep(600)
    """
    reading = run_program(tree, code, total_s=2.0)
    assert [hca.name for hca in reading.hcas] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10"]
    assert [problem.text for problem in reading.problems] == ["not read: 2 s were over"] * 3


def test_a_child_that_is_not_ready_in_time_says_nothing_of_any_card(tree):
    """Its program may lie on a slow file system: no card is called dead for that."""
    assert run_program(tree, "import time; time.sleep(600)", total_s=0.3, limit_s=0.1) is None


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(7)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "print('nonsense')",
        "print('ready')",
        "print('ready'); print('[[{]')",
        "print('ready'); print('ready')",
        "import sys; sys.stdout.buffer.write(bytes([0xff, 0x0a]))",
    ],
)
def test_a_child_that_can_not_do_it_leaves_the_reading_to_its_parent(tree, code):
    assert run_program(tree, code) is None


def test_a_program_that_can_not_be_started_leaves_the_reading_to_its_parent(tree):
    assert HcaRun(tree.root, ["/nonexistent"]).result(1.0) is None


def test_what_a_device_could_not_tell_comes_with_it(tree):
    problem = Problem(source="/sys/class/infiniband/mlx5_0", text="fw_ver: Input/output error", field="hcas")
    lines = line("mlx5_0", problem) + line("mlx5_1") + line("mlx5_2") + line("mlx5_10")
    reading = run_program(tree, f"print('ready'); print({lines!r}, end='')")
    assert reading.problems == (problem,)
    assert len(reading.hcas) == 4
