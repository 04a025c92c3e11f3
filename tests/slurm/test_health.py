"""`preflight slurm health`: when a node is given back, and that one run at a time is enough."""

import contextlib

import msgspec
import pytest

from preflight.model import Evidence, Finding, Inventory, Report, Verdict
from preflight.model.finding import Part
from preflight.slurm.health import count_gpus, is_well, may_resume
from preflight.slurm.nodes import SlurmNode
from preflight.slurm.reason import checks_of, reason_of
from preflight.slurm.state import StateFolder
from tests.builders import make_node
from tests.nvml_library import build
from tests.slurm import prologs

BAD = Finding(
    check="row_remap",
    subject="n1",
    verdict=Verdict.FAIL,
    observed="row remapping failed",
    remedy="replace GPU 7",
    blames=Part(kind="gpu", name="n1 GPU 7"),
)
LOCAL = reason_of([BAD], "health-1")
FABRIC = reason_of([BAD], "scan-1", kind="fabric")


def drained(reason=LOCAL, *states, gres="gpu:8"):
    return SlurmNode(name="n1", states=frozenset({"idle", "drain", *states}), reason=reason, gres=gres)


def report(*verdicts, gpus=8):
    """Of (check, verdict, need); row_remap passes if nothing is said of it."""
    said = dict.fromkeys(("row_remap",), (Verdict.PASS, "required")) | {name: rest for name, *rest in verdicts}
    findings = tuple(
        Finding(check=name, subject="n1", verdict=verdict, observed="", need=need)
        for name, (verdict, need) in said.items()
    )
    evidence = Evidence(inventory=Inventory(nodes=(make_node("n1", gpus=gpus),)))
    facts = {"run_id": "r", "command": "slurm health", "started_at_s": 0.0, "duration_s": 0.0, "answer": "go"}
    return Report(findings=findings, evidence=evidence, **facts)


def test_a_node_that_a_local_check_of_ours_drained_may_be_resumed():
    assert may_resume(drained())


@pytest.mark.parametrize(
    "node",
    [
        drained("bad fan, ada 30 Nov"),
        drained(None),
        drained("Prolog error"),
        drained("NHC: check_hw_eth: no such device"),
        drained(FABRIC),
        drained(f"{LOCAL}, and its fan: ada"),
        drained(LOCAL, "maint"),
        drained(LOCAL, "reserved"),
        drained(LOCAL, "down"),
        drained(LOCAL, "reboot_issued"),
        drained(LOCAL, "fail"),
        SlurmNode(name="n1", states=frozenset({"idle"}), reason=LOCAL),
    ],
)
def test_no_other_is(node):
    assert not may_resume(node)


def test_a_node_is_well_when_the_check_that_drained_it_passes():
    assert is_well(report(), drained())
    assert is_well(report(("xid", Verdict.UNKNOWN, "advisory"), ("memlock", Verdict.WARN, "required")), drained())


@pytest.mark.parametrize(
    "said",
    [
        report(("row_remap", Verdict.SKIP, "required")),
        report(("row_remap", Verdict.UNKNOWN, "advisory")),
        report(("row_remap", Verdict.FAIL, "required")),
        report(("xid", Verdict.FAIL, "advisory")),
        report(("gpus_answer", Verdict.UNKNOWN, "required")),
        report(gpus=7),
        report(gpus=None),
        report(gpus=0),
    ],
)
def test_it_is_not_when_anything_fails_is_unknown_or_is_missing(said):
    assert not is_well(said, drained())


@pytest.mark.parametrize("said", [("row_remap", Verdict.UNKNOWN, "advisory"), ("row_remap", Verdict.WARN, "required")])
def test_a_check_that_passes_for_other_parts_says_nothing_of_the_sick_one(said):
    """One GPU's rows can't be read any more, those of seven can."""
    passing = report()
    more = report(said).findings
    assert not is_well(msgspec.structs.replace(passing, findings=(*passing.findings, *more)), drained())


def test_a_node_that_was_drained_for_several_things_is_well_when_each_of_them_passes():
    both = drained(reason_of([BAD, msgspec.structs.replace(BAD, check="temperature")], "r"))
    assert not is_well(report(), both)
    assert not is_well(report(("temperature", Verdict.UNKNOWN, "advisory")), both)
    assert is_well(report(("temperature", Verdict.PASS, "advisory")), both)


def test_where_the_reason_has_no_room_for_all_checks_nothing_may_be_unknown():
    many = [msgspec.structs.replace(BAD, check=f"a_check_of_the_site_{number}") for number in range(5)]
    node = drained(reason_of([BAD, *many], "r"))
    named, whole = checks_of(node.reason)
    assert not whole
    said = report(*((name, Verdict.PASS, "required") for name in named))
    assert is_well(said, node)
    unknown = report(*((name, Verdict.PASS, "required") for name in named), ("xid", Verdict.UNKNOWN, "advisory"))
    assert not is_well(unknown, node)


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        (None, 0),
        ("gpu", 1),
        ("gpu:8", 8),
        ("gpu:h100:8", 8),
        ("gpu:h100:8(S:0-1)", 8),
        ("gpu:a:2(S:0,1),gpu:b:4(S:1),shard:16", 6),
        ("gpus:8,craynetwork:4", 0),
    ],
)
def test_gpus_are_counted_as_slurm_lists_them(gres, count):
    assert count_gpus(gres) == count


@pytest.mark.cc
def test_a_healthy_node_is_told_and_slurm_is_not_asked(tmp_path):
    config, calls = prologs.site(tmp_path, slurm="enforce = true"), prologs.slurm_programs(tmp_path)
    library = build(tmp_path / "lib")
    done = prologs.run("--config", str(config), "--jitter", "0", command="health", library=library, SLURM_JOB_ID="")
    assert done.returncode == 0, done.stderr
    assert "health program on n1: go in" in done.stderr
    assert not calls.exists()
    assert prologs.metrics(tmp_path / "metrics", "health")["preflight_run_answer", "go"] == 1
    assert [path.name for path in (tmp_path / "state/reports").iterdir()] == ["health-latest.json"]


@contextlib.contextmanager
def held(folder):
    with StateFolder(str(folder / "state")) as state, state.lock("health-n1.lock") as alone:
        assert alone
        yield


def test_a_second_one_leaves_the_first_alone(tmp_path):
    config = prologs.site(tmp_path)
    with held(tmp_path):
        done = prologs.run("--config", str(config), "--jitter", "0", command="health")
    assert done.returncode == 0
    assert "another one is still at work" in done.stderr


@pytest.mark.parametrize("text", ["[slurm]\nresumes = true\n", "not toml"])
def test_a_broken_configuration_judges_nothing(tmp_path, text):
    config = tmp_path / "preflight.toml"
    config.write_text(text)
    (tmp_path / "metrics").mkdir()
    where = ("--textfile-dir", str(tmp_path / "metrics"))
    done = prologs.run("--config", str(config), *where, command="health")
    assert done.returncode == 78
    found = prologs.metrics(tmp_path / "metrics", "health")
    assert found["preflight_findings", "slurm_health UNKNOWN"] == 1
