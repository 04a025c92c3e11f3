"""The prolog's own writer of metrics says what the library's would, and its log line what can be logged."""

import re
import socket
import stat
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from preflight.errors import ConfigError
from preflight.model import Evidence, Finding, Report, Verdict
from preflight.report import prometheus
from preflight.slurm.files import PARTIAL
from preflight.slurm.logline import MAX_LINE, joined, one_line, say
from preflight.slurm.textfile import DRAINS, VERDICTS, metrics_text, write_metrics
from tests.slurm import prologs

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)


def text(**changes):
    facts = {"answer": "go", "findings": {("xid", "PASS"): 1}, "duration_s": 0.25, "completed_s": 1.8e9}
    return metrics_text("slurm prolog", "n1", **{**facts, **changes})


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_families_that_both_write_have_one_help_one_type_and_the_same_labels_of_their_own():
    finding = Finding(check="xid", subject="n1", verdict=Verdict.PASS, observed="none")
    facts = {"started_at_s": 1.8e9 - 0.25, "duration_s": 0.25, "answer": "go", "findings": (finding,)}
    report = Report(run_id="r", command="slurm prolog", evidence=Evidence(), **facts)
    theirs, ours = families(prometheus.metrics_text(report)), families(text())
    shared = theirs.keys() & ours.keys()
    assert {"preflight_run_answer", "preflight_findings", "preflight_run_duration_seconds"} <= shared
    assert ours.keys() - shared == {"preflight_run_drain", "preflight_version_info"}
    for name in shared:
        assert (theirs[name].documentation, theirs[name].type) == (ours[name].documentation, ours[name].type)
        samples = [
            {
                tuple(sorted({**s.labels, "command": "slurm prolog", "node": "n1"}.items())): s.value
                for s in family.samples
            }
            for family in (theirs[name], ours[name])
        ]
        assert samples[0] == samples[1], name


def test_every_verdict_of_a_check_has_a_series_and_every_end_of_a_drain():
    found = families(text(findings={("xid", "FAIL"): 2}, drain="drained"))
    counts = {sample.labels["verdict"]: sample.value for sample in found["preflight_findings"].samples}
    assert counts == dict.fromkeys(VERDICTS, 0.0) | {"FAIL": 2.0}
    ends = {sample.labels["result"]: sample.value for sample in found["preflight_run_drain"].samples}
    assert ends == dict.fromkeys(DRAINS, 0.0) | {"drained": 1.0}


def test_the_script_writes_the_same_families_as_the_command():
    lines = re.findall(r"# (?:HELP|TYPE) [^']*", (prologs.ROOT / "deploy/slurm/prolog.sh").read_text())
    assert len(lines) == 4
    assert all(line in text().splitlines() for line in lines)


@given(node=NAMES, check=NAMES)
def test_no_name_breaks_the_file(node, check):
    read = families(metrics_text("slurm prolog", node, answer="go", findings={(check, "PASS"): 1}, duration_s=1.0))
    labels = [sample.labels for sample in read["preflight_findings"].samples if sample.value]
    assert labels == [{"check": check, "verdict": "PASS", "command": "slurm prolog", "node": node}]


def test_the_file_is_readable_has_its_own_name_and_replaces_the_last_one(tmp_path):
    for _ in range(2):
        write_metrics(str(tmp_path), "slurm prolog", "n1", text())
    write_metrics(str(tmp_path), "slurm prolog", "../n2", text())
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"preflight-slurm-prolog-n1.prom", "preflight-slurm-prolog-..-n2.prom"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in tmp_path.iterdir())


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "preflight-slurm-prolog-n1.prom").symlink_to(tmp_path / "precious")
    write_metrics(str(tmp_path), "slurm prolog", "n1", text())
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "preflight-slurm-prolog-n1.prom").read_text() == text()


def test_a_folder_in_its_place_is_an_error_and_nothing_stays_beside_it(tmp_path):
    (tmp_path / "preflight-slurm-prolog-n1.prom").mkdir()
    with pytest.raises(OSError):
        write_metrics(str(tmp_path), "slurm prolog", "n1", text())
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(PARTIAL)]


@given(st.text(max_size=2000))
def test_a_log_line_is_one_short_line_of_plain_letters(said):
    line = one_line(said)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= MAX_LINE


def test_the_line_goes_to_the_system_s_log_and_to_stderr(tmp_path, capsys):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        say("n1: bad\nthing", "error", log_socket=str(tmp_path / "log"))
        assert re.fullmatch(r"<27>preflight\[\d+\]: n1: bad thing", log.recv(2000).decode())
    assert capsys.readouterr().err == "preflight: n1: bad thing\n"


def test_what_mends_a_fault_is_told_apart_from_what_is_wrong():
    error = ConfigError("preflight.toml", "unknown", key="slurm.enfroce", remedy="did you mean enforce?")
    assert joined(str(error)) == "preflight.toml: slurm.enfroce: unknown; did you mean enforce?"
    assert joined("") == ""


def test_a_line_in_a_file_carries_the_time_as_slurm_s_own_logs_have_it(tmp_path, monkeypatch):
    with (tmp_path / "log").open("w") as log:
        monkeypatch.setattr(sys, "stderr", log)
        say("n1: bad", log_socket=str(tmp_path / "nowhere"))
        monkeypatch.setattr(sys, "stderr", None)  # as Python leaves it where descriptor 2 is closed
        say("n1: worse", log_socket=str(tmp_path / "nowhere"))
    stamped = r"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\] preflight: n1: bad\n"
    assert re.fullmatch(stamped, (tmp_path / "log").read_text())


def test_a_log_that_is_full_gone_or_no_log_holds_nobody(tmp_path):
    say("x", log_socket=str(tmp_path / "nowhere"))
    say("x", log_socket="/" + "x" * 200)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        for _ in range(2000):  # nobody reads
            say("x" * 800, log_socket=str(tmp_path / "log"))
