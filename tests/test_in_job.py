"""preflight.assert_placement in real jobs over gloo: all ranks raise with one text, or none does; and without torch.distributed."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import preflight
from preflight import in_job
from preflight.errors import PreflightError
from preflight.model import RankFacts
from preflight.plan.planfile import read_job
from tests.builders import make_job, make_plan
from tests.jobs import run_job, write_node

PLAN = """
[model]
parameters = "7B"
layers = 32
[parallel]
tp = 2
dp = 2
[training]
micro_batches = 8
"""


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK") or name.startswith(("SLURM", "OMPI", "PMI")):
            monkeypatch.delenv(name)


def prepare(folder):
    """Two nodes, and a plan of four ranks."""
    for number in range(2):
        write_node(folder / f"n{number}", f"host{number}", f"boot-{number}")
    write_node(folder / "container0", "host0", "boot-0")
    write_node(folder / "container1", "host1", "boot-0")
    (folder / "job.toml").write_text(PLAN)
    (folder / "old.toml").write_text(PLAN.replace("32", "30"))
    (folder / "wide.toml").write_text(PLAN.replace("tp = 2", "tp = 8"))
    (folder / "broken.toml").write_text("[model")
    launch = '[launch]\nlauncher = "slurm"\ndistribution = "block"\n'
    (folder / "slurm.toml").write_text(PLAN.replace("tp = 2", "tp = 1").replace("dp = 2", "dp = 4") + launch)
    return folder


@pytest.fixture
def folder(tmp_path):
    return prepare(tmp_path)


# one job of four ranks asks for all of these, one after the other; each gives (plan, folder of the rank's node, what to break before)
CASES = """
import functools
from preflight.plan.planfile import read_job
BLOCK, CYCLIC = (lambda rank: f"n{rank // 2}"), (lambda rank: f"n{rank % 2}")
CASES = {
    "good": ("job.toml", BLOCK),
    "cyclic": ("job.toml", CYCLIC),
    "containers": ("job.toml", lambda rank: f"container{rank % 2}"),
    "job": (read_job(FOLDER / "job.toml"), CYCLIC),
    "unreadable": (lambda rank: "no.toml" if rank == 2 else "job.toml", BLOCK),
    "other plan": (lambda rank: "old.toml" if rank == 3 else "job.toml", BLOCK),
    "wide": ("wide.toml", BLOCK),
    "broken": ("broken.toml", BLOCK),
    "fault on rank 0": ("job.toml", BLOCK, lambda rank: {"judging": {"judged": None}}),
    "fault on rank 1": ("job.toml", BLOCK, lambda rank: {"facts": {"facts_without_gpu": None}} if rank == 1 else {}),
    "long": ("job.toml", BLOCK, lambda rank: {"judging": {"judged": lambda *_: preflight.in_job.judging.Outcome("\u00e4" + chr(92) * 9000, "")}}),
    "as expected": ("slurm.toml", BLOCK),
    "not as expected": ("slurm.toml", CYCLIC),
}
def one(rank, plan, node, broken=lambda rank: {}):
    from unittest.mock import patch
    plan = plan(rank) if callable(plan) else plan
    changes = broken(rank)
    with patch.multiple(preflight.in_job.facts, ROOT=FOLDER / node(rank), **changes.get("facts", {})), patch.multiple(preflight.in_job.judging, **changes.get("judging", {"MAX_SHOWN": 5})):
        try:
            return {"value": preflight.assert_placement(FOLDER / plan if isinstance(plan, str) else plan)}
        except preflight.PlacementError as error:
            return {"text": str(error), "code": error.exit_code}
def main(rank):
    return {name: one(rank, *case) for name, case in CASES.items()}
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Case -> what each rank gave or raised."""
    ranks = run_job(4, prepare(tmp_path_factory.mktemp("job")), CASES)
    assert len(ranks) == 4
    return {case: [one["value"][case] for one in ranks] for case in ranks[0]["value"]}


def one_reason(outcomes):
    """The text that every rank raised."""
    assert all("text" in one for one in outcomes), outcomes
    assert {one["code"] for one in outcomes} == {10}
    [text] = {one["text"] for one in outcomes}
    return text


@pytest.mark.fabric
@pytest.mark.parametrize("case", ["good", "containers", "as expected"])
def test_a_good_placement_passes_on_every_rank_and_gives_the_fingerprint(said, case):
    [fingerprint] = {one.get("value") for one in said[case]}
    assert str(fingerprint).startswith("pf1-")


@pytest.mark.fabric
@pytest.mark.parametrize("case", ["cyclic", "job"])
def test_a_cyclic_placement_raises_on_every_rank_with_one_reason(said, case):
    reason = one_reason(said[case])
    assert "the placement of this job breaks 2 rules" in reason
    assert "tp_in_nvlink_domain, tp0: ranks 0-1 on 2 nodes, host[0-1]" in reason


@pytest.mark.fabric
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unreadable", "no.toml: can't be read: No such file"),
        ("unreadable", "rank 2: "),
        ("other plan", "rank 3 on host1 has another plan than rank 0: give all ranks the same file"),
        ("wide", "tp 8"),
        ("broken", "is not TOML"),
        ("not as expected", "ranks_match, placement: rank 1: predicted node host0 local rank 1, found node host1"),
        ("fault on rank 0", "could not be judged: TypeError"),
        ("fault on rank 1", "rank 1: TypeError"),
    ],
)
def test_what_one_rank_can_not_read_or_know_makes_all_raise_with_one_reason(said, case, words):
    assert words in one_reason(said[case])


@pytest.mark.fabric
def test_a_reason_of_any_length_and_letters_reaches_all(said):
    reason = one_reason(said["long"])
    assert len(reason) == in_job.agreeing.MAX_REASON
    assert reason.startswith("\\xe4\\\\")


@pytest.mark.fabric
def test_a_rank_that_never_comes_is_named_by_all_others(folder):
    body = """
    def main(rank):
        preflight.in_job.agreeing.GRACE_S = 3
        if rank == 2:
            time.sleep(15)
            return
        preflight.assert_placement(FOLDER / "job.toml", deadline_s=4)
    """
    said = [one for one in run_job(5, folder, body) if one["rank"] != 2]
    reason = one_reason(said)
    assert reason.startswith("rank 2 did not come to preflight.assert_placement within 4 s: it must be called on all")
    assert len(said) == 4
    assert max(one["seconds"] for one in said) < 15


@pytest.mark.fabric
def test_rank_0_with_its_store_leaves_last_if_somebody_is_missing(folder):
    """Each process ends as soon as it has raised, as a script does that nobody catches; rank 2 was never there."""
    body = """
    import json
    def main(rank):
        preflight.in_job.agreeing.GRACE_S = 5
        if rank == 2:
            os._exit(0)
        try:
            preflight.assert_placement(FOLDER / "job.toml", deadline_s=6)
        except preflight.PlacementError as error:
            os.write(1, json.dumps({"rank": rank, "text": str(error), "code": 10}).encode() + b"\\n")
        os._exit(0)
    """
    said = run_job(4, folder, body)
    assert len(said) == 3
    assert one_reason(said).startswith("rank 2 did not come to preflight.assert_placement")


@pytest.mark.fabric
def test_without_a_roll_call_the_others_still_raise_with_one_reason(folder):
    body = """
    from torch.distributed import distributed_c10d
    def main(rank):
        preflight.in_job.agreeing.GRACE_S = 1
        distributed_c10d._get_default_store = None  # a torch that keeps its store to itself
        if rank == 1:
            time.sleep(12)
            return
        preflight.assert_placement(FOLDER / "job.toml", deadline_s=4)
    """
    said = [one for one in run_job(3, folder, body) if one["rank"] != 1]
    assert one_reason(said).startswith("not every rank came to preflight.assert_placement within 4 s, or one left")


# without torch.distributed


def facts(node_of):
    return [
        RankFacts(rank=rank, host=f"h{node_of(rank)}", boot_id=f"b{node_of(rank)}", world_size=4) for rank in range(4)
    ]


def test_facts_of_ranks_are_judged_without_a_word_to_anyone(folder):
    good = preflight.assert_placement(folder / "job.toml", ranks=facts(lambda rank: rank // 2))
    path = folder / "ranks.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, facts(lambda rank: rank // 2))))
    assert preflight.assert_placement(str(folder / "job.toml"), ranks=path) == good
    with pytest.raises(preflight.PlacementError, match="tp_in_nvlink_domain, tp0"):
        preflight.assert_placement(folder / "job.toml", ranks=facts(lambda rank: rank % 2))
    with pytest.raises(preflight.PlacementError, match="can't be read"):
        preflight.assert_placement(folder / "job.toml", ranks=folder / "none")


def test_fewer_ranks_than_planned_are_a_reason(folder):
    (folder / "job.toml").write_text(PLAN.replace("dp = 2", "") + "[hardware]\nnodes = 4\ngpus_per_node = 2\n")
    with pytest.raises(preflight.PlacementError, match="4 nodes x 2 GPUs = 8 ranks, but 4 ranks said where they are"):
        preflight.assert_placement(folder / "job.toml", ranks=facts(lambda rank: rank // 2))


def test_an_estimate_of_memory_or_bubble_stops_no_job_that_runs(folder):
    heavy = PLAN.replace("7B", "700B").replace("micro_batches = 8", "micro_batches = 1").replace("tp = 2", "tp = 1")
    (folder / "job.toml").write_text(heavy.replace("dp = 2", "pp = 4") + '[hardware]\ngpu = "H100-80GB"\n')
    assert preflight.assert_placement(folder / "job.toml", ranks=facts(lambda rank: rank // 2))


def test_two_ranks_on_one_gpu_are_a_reason(folder):
    shared = [msgspec.structs.replace(one, gpu_uuid=f"GPU-{one.rank // 2}") for one in facts(lambda rank: rank // 2)]
    with pytest.raises(preflight.PlacementError, match=r"gpu_per_rank, GPU-0: ranks 0-1 on h0 share it"):
        preflight.assert_placement(folder / "job.toml", ranks=shared)


def test_a_domain_over_two_nodes_makes_a_wide_group_right_and_two_domains_make_it_wrong(folder):
    (folder / "job.toml").write_text(PLAN.replace("tp = 2", "tp = 4").replace("dp = 2", "dp = 1"))
    joined = [msgspec.structs.replace(one, domain="rack.1") for one in facts(lambda rank: rank // 2)]
    assert preflight.assert_placement(folder / "job.toml", ranks=joined)
    apart = [msgspec.structs.replace(one, domain=f"rack.{one.rank // 2}") for one in joined]
    with pytest.raises(preflight.PlacementError, match="tp_in_nvlink_domain, tp0"):
        preflight.assert_placement(folder / "job.toml", ranks=apart)


def step(monkeypatch, rank, **changes):
    environ = {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % 2),
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "host[0-1]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        **changes,
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


def test_in_a_slurm_step_without_torch_the_placement_follows_from_its_variables(folder, monkeypatch):
    monkeypatch.setattr(in_job.facts, "ROOT", folder / "n1")
    step(monkeypatch, 3)
    assert preflight.assert_placement(folder / "job.toml").startswith("pf1-")
    step(monkeypatch, 3, SLURM_DISTRIBUTION="cyclic", SLURM_LOCALID="1")
    with pytest.raises(preflight.PlacementError, match="tp_in_nvlink_domain, tp0"):
        preflight.assert_placement(folder / "job.toml")


def test_a_process_that_is_elsewhere_than_its_launcher_says_raises(folder, monkeypatch):
    monkeypatch.setattr(in_job.facts, "ROOT", folder / "n0")
    step(monkeypatch, 3)
    with pytest.raises(preflight.PlacementError, match="rank 3 runs on host0, but belongs on host1"):
        preflight.assert_placement(folder / "job.toml")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "no launcher numbers this process"),
        ({"RANK": "0"}, "no variable tells the number of ranks"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "hardware.gpus_per_node: is missing"),
    ],
)
def test_what_is_missing_is_said(folder, monkeypatch, environ, words):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(preflight.PlacementError) as caught:
        preflight.assert_placement(folder / "job.toml")
    assert words in str(caught.value)


def test_a_plan_or_a_job_will_do_and_nothing_else(folder):
    ranks = [RankFacts(rank=rank, host=f"h{rank // 8}", world_size=64) for rank in range(64)]
    assert preflight.assert_placement(make_job(), ranks=ranks) == preflight.assert_placement(make_plan(), ranks=ranks)
    assert preflight.assert_placement(read_job(folder / "job.toml"), ranks=facts(lambda rank: rank // 2))
    with pytest.raises(TypeError, match="int, expected the path"):
        preflight.assert_placement(3)


def test_the_public_names_are_there_and_importing_preflight_costs_none_of_them():
    assert issubclass(preflight.PlacementError, PreflightError)
    with pytest.raises(AttributeError, match="nothing_else"):
        preflight.nothing_else  # noqa: B018
    code = "import sys, preflight; print([m for m in sys.modules if m.startswith('preflight') or m == 'torch'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ast.literal_eval(done.stdout) == ["preflight"]


def test_a_script_without_torch_never_imports_it(folder):
    code = (
        "import sys, preflight; from preflight.model import RankFacts\n"
        "ranks = [RankFacts(rank=r, host=f'h{r // 2}', world_size=4) for r in range(4)]\n"
        f"preflight.assert_placement({str(folder / 'job.toml')!r}, ranks=ranks)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
    assert Path(preflight.__file__).is_file()
