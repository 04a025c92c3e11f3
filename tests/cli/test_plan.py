"""`preflight plan`: the three reference plans with their figures, and a clear refusal of whatever else a file may hold."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.cli.main import run_command_line

PLANS = Path(__file__).parents[2] / "deploy" / "plans"
DENSE = (PLANS / "dense-70b-64gpu.toml").read_text()


@pytest.fixture
def plan(tmp_path, capsys):
    """Runs `preflight plan` on a text: exit code, stdout, stderr."""

    def run(text: str, *options: str):
        path = tmp_path / "job.toml"
        path.write_text(text)
        code = run_command_line(["plan", str(path), *options])
        return code, *capsys.readouterr()

    return run


def as_json(result):
    code, out, err = result
    assert err == ""
    return code, json.loads(out)


def findings_of(document, check: str):
    return [finding for finding in document["findings"] if finding["check"] == check]


def test_the_reference_plan_is_go_with_its_figures(plan):
    code, document = as_json(plan(DENSE, "--format", "json"))
    assert (code, document["schema"], document["answer"]) == (0, "preflight.plan/1", "go")
    estimate = document["estimate"]
    assert estimate["state_bytes_per_gpu"] == 35_000_000_000
    assert estimate["free_bytes_per_gpu"] == 45_000_000_000
    assert (estimate["bubble_overhead"], estimate["bubble_idle_share"]) == (0.0938, 0.0857)
    assert estimate["tp_collectives_per_stage_forward"] == 40
    assert document["groups"]["tp"][0] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert document["groups"]["dp"][0] == [0, 8]
    assert document["groups"]["pp"][0] == [0, 16, 32, 48]
    assert document["degrees"] == {"tp": 8, "cp": 1, "ep": 1, "dp": 2, "pp": 4}
    assert document["placement"]["nodes"] == "node[0-7]"


def test_four_micro_batches_are_no_go_with_the_number_that_would_do(plan):
    text = DENSE.replace("global_batch_size = 64 ", "micro_batches = 4 ")
    code, document = as_json(plan(text, "--format", "json"))
    assert (code, document["answer"]) == (10, "no-go")
    assert document["estimate"]["bubble_overhead"] == 0.75
    assert document["estimate"]["bubble_idle_share"] == 0.4286
    [finding] = findings_of(document, "pipeline_bubble")
    assert finding["verdict"] == "FAIL"
    assert "at least 27 micro-batches" in finding["remedy"]


def test_tensor_parallelism_over_two_nodes_is_no_go_and_names_group_ranks_and_nodes(plan):
    text = DENSE.replace("tp = 8", "tp = 16").replace("pp = 4", "pp = 2")
    code, document = as_json(plan(text, "--format", "json"))
    assert (code, document["answer"]) == (10, "no-go")
    finding = findings_of(document, "tp_in_nvlink_domain")[0]
    assert (finding["subject"], finding["verdict"]) == ("tp0", "FAIL")
    assert "ranks 0-15" in finding["observed"]
    assert "node[0-1]" in finding["observed"]
    assert "lower tp from 16 to 8" in finding["remedy"]


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_plan_is_go(path, capsys):
    assert run_command_line(["plan", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "go"


def test_the_text_shows_layout_estimate_findings_and_answer(plan):
    code, out, _ = plan(DENSE.replace("global_batch_size = 64 ", "micro_batches = 4 "))
    assert code == 10
    assert "64 ranks on 8 nodes x 8, megatron order tp-cp-ep-dp-pp" in out
    assert "pp    0,16,32,48        4      16                4" in out
    assert "35.0 GB per GPU" in out
    assert "FAIL    pipeline_bubble" in out
    assert "more checks need a cluster: preflight run" in out
    assert out.splitlines()[-1] == "no-go: 1 FAIL (pipeline_bubble)"


def test_a_rule_lowers_a_failure_and_one_switched_off_stays_in_sight(plan):
    text = DENSE.replace("global_batch_size = 64 ", "micro_batches = 4 ")
    code, out, _ = plan(text + '[rules]\npipeline_bubble = "warn"\nmemory_fit = "off"\n')
    assert code == 0
    assert "WARN    pipeline_bubble" in out
    assert "SKIP    memory_fit: switched off in the rules" in out


def test_limits_of_a_rule_are_used(plan):
    text = DENSE.replace("global_batch_size = 64 ", "micro_batches = 4 ")
    assert plan(text + "[rules.pipeline_bubble.limits]\nfail_idle_share = 0.5\nwarn_idle_share = 0.5\n")[0] == 0


def test_a_gpu_whose_memory_nobody_knows_leaves_the_plan_undecided(plan):
    code, out, err = plan(DENSE.replace("H100-80GB", "H100-80G"))
    assert code == 3
    assert "hardware.gpu: 'H100-80G' has no profile; did you mean 'H100-80GB'? known: A100-40GB" in err
    assert "no profile tells the memory of 'H100-80G'" in out


def test_nagios_codes_and_junit_are_given_on_request(plan):
    bad = DENSE.replace("global_batch_size = 64 ", "micro_batches = 4 ")
    assert plan(bad, "--exit-style", "nagios")[0] == 2
    code, out, _ = plan(bad, "--format", "junit")
    assert (code, ET.fromstring(out).get("failures")) == (10, "2")  # the bubble, and the answer


def test_degrees_that_do_not_fill_the_world_are_refused(plan):
    code, out, err = plan(DENSE.replace("dp = 2", "dp = 3"))
    assert (code, out) == (78, "")
    assert "tp 8 x cp 1 x dp 3 x pp 4 = 96 ranks, but 8 nodes x 8 GPUs = 64" in err


def test_a_rule_for_a_check_that_is_not_there_is_refused(plan):
    code, _, err = plan(DENSE + '[rules]\ntp_in_nvlink_domian = "warn"\n')
    assert code == 78
    assert "did you mean 'tp_in_nvlink_domain'?" in err


def test_wrong_usage_and_a_missing_file_are_told_apart(tmp_path, capsys):
    assert run_command_line(["plan"]) == 64
    assert run_command_line(["plan", str(PLANS / "demo.toml"), "--format", "xml"]) == 64
    assert run_command_line(["plan", str(tmp_path / "none.toml")]) == 78
    assert run_command_line(["plan", str(tmp_path)]) == 78
    capsys.readouterr()


def test_nothing_that_measures_is_imported():
    code = (
        "import sys; from preflight.cli.main import run_command_line; "
        f"run_command_line(['plan', {str(PLANS / 'demo.toml')!r}]); "
        "print([m for m in ('torch', 'aiohttp', 'rich', 'pynvml', 'psutil', 'prometheus_client') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


# --- fuzzing: any content gives an answer or a refusal, never another exception ---

fuzz = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def outcome(tmp_path, capsys, content: bytes) -> int:
    path = tmp_path / "fuzz.toml"
    path.write_bytes(content)
    code = run_command_line(["plan", str(path), "--format", "json"])
    out, err = capsys.readouterr()
    assert err == "" or err.startswith(f"preflight: {path}: ")
    assert code != 78 or err
    assert (code == 78) == (out == "")
    return code


@fuzz
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(tmp_path, capsys, content):
    assert outcome(tmp_path, capsys, content) == 78


words = ["model", "parallel", "training", "hardware", "rules", "limits", "tp", "layers", "parameters", "severity"]
names = st.sampled_from(words) | st.text(max_size=8)
scalars = (
    st.integers()
    | st.floats()
    | st.booleans()
    | st.text(max_size=20)
    | st.dates()
    | st.sampled_from(["70B", "warn", "off"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)


def toml(value: object) -> str:
    """A value as inline TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON escapes what TOML escapes, DEL apart; a lone surrogate can't occur
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    return str(value)


@fuzz
@given(document=st.dictionaries(names, values, max_size=5))
def test_arbitrary_documents_are_refused(tmp_path, capsys, document):
    text = "".join(f"{toml(key)} = {toml(value)}\n" for key, value in document.items())
    assert outcome(tmp_path, capsys, text.encode("utf-8", "replace")) == 78


LINES = DENSE.splitlines()
RULES = ["[rules]\npipeline_bubble = ", "[rules.memory_fit]\nlimits = "]
assignments = [i for i, line in enumerate(LINES) if " = " in line]


@fuzz
@given(
    line=st.sampled_from(assignments),
    value=values | st.integers(0, 64),
    rule=st.just("") | st.builds("{}{}".format, st.sampled_from(RULES), values.map(toml)),
)
def test_a_valid_plan_with_a_changed_value_is_judged_or_refused(tmp_path, capsys, line, value, rule):
    lines = list(LINES)
    lines[line] = f"{lines[line].split(' = ')[0]} = {toml(value)}"
    text = "\n".join([*lines, rule])
    assert outcome(tmp_path, capsys, text.encode("utf-8", "replace")) in {0, 3, 10, 78}


@fuzz
@given(first=st.integers(0, len(DENSE)), length=st.integers(0, 40), inserted=st.text(max_size=10))
def test_a_valid_plan_with_a_damaged_place_is_judged_or_refused(tmp_path, capsys, first, length, inserted):
    text = DENSE[:first] + inserted + DENSE[first + length :]
    assert outcome(tmp_path, capsys, text.encode("utf-8", "replace")) in {0, 3, 10, 78}
