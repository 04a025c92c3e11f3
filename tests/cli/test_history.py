"""`preflight history`, and where `preflight run` keeps its results."""

import json
import re
import time
from pathlib import Path

import pytest

from preflight.cli import run_history
from preflight.cli.main import run_command_line
from preflight.errors import WorldError
from preflight.fleet.history import History
from preflight.model import Finding, Verdict
from tests.fleet.test_history_store import report_of, verdict_of

DAY_S = 86400.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A part that stepped down four runs ago; a simulated run; hostile texts."""
    path = tmp_path / "history.sqlite"
    history = History(path)
    for number in range(14):
        rate = 1e9 * (1 + number % 3 / 200) * (0.7 if number >= 10 else 1)
        history.add(report_of(f"r{number}", at_s=time.time() - (14 - number) * DAY_S, rate=rate))
    bad = report_of("evil", at_s=time.time() - 100, rate=0.7e9)
    evil = Finding(check="pairs", subject="\x1b[2Jpair", verdict=Verdict.FAIL, observed="<b>\nx\u202e", remedy="")
    import msgspec

    history.add(
        msgspec.structs.replace(bad, findings=(evil,)),
        nodes_of={0: "a1"},
        verdicts=[verdict_of("evil", text="\x1b[31mslow")],
    )
    history.add(report_of("sim", simulated=True))
    return path


def shown(capsys, *words):
    code = run_command_line(["history", *map(str, words)])
    return code, capsys.readouterr().out


def test_runs_are_listed_newest_first_with_what_was_worst(path, capsys):
    code, out = shown(capsys, "--file", path)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].endswith("with a write-ahead log")
    assert lines[1].split() == ["WHEN", "(UTC)", "COMMAND", "ANSWER", "NODES", "WORST", "FINDING"]
    assert "SIMULATED FAIL pairs pair 1-3: timed out" in lines[2]
    assert "\x1b" not in out
    assert len(lines) == 2 + 16
    assert len(shown(capsys, "--file", path, "--since", "7d", "--limit", 5)[1].splitlines()) == 7


def test_a_nodes_story_shows_since_when_a_pair_is_lower(path, capsys):
    code, out = shown(capsys, "a1", "--file", path)
    assert code == 0
    assert "\x1b" not in out
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 4 * DAY_S))
    assert f"lower since {day}" in out
    assert "1.00 GB/s before, 30% lower" in out
    found = json.loads(shown(capsys, "a1", "--file", path, "--format", "json")[1])
    [trend] = [each for each in found["figures"] if each["line"]["members"] == "a1/0 a2/0"]
    assert trend["depth"] == pytest.approx(0.3, abs=0.02)
    assert "SIMULATED" not in out


def test_what_is_not_known_is_said(path, tmp_path, capsys):
    assert shown(capsys, "elsewhere", "--file", path)[0] == 3
    code, out = shown(capsys, "--file", tmp_path / "missing")
    assert (code, "there is none yet" in out) == (0, True)


def test_what_is_merely_older_than_asked_for_is_not_called_unknown(path, capsys):
    code, out = shown(capsys, "a1", "--file", path, "--since", "0m")
    assert code == 3
    assert re.search(r"nothing is known of node a1 since \d{4}-\d\d-\d\d \d\d:\d\d UTC", out)
    assert re.search(r"no runs since \d{4}-", shown(capsys, "--file", path, "--since", "0m")[1])


def test_a_copy_goes_out_and_comes_in(path, tmp_path, capsys):
    assert shown(capsys, "--file", path, "--export", tmp_path / "lines")[0] == 0
    assert shown(capsys, "--file", tmp_path / "new", "--import", tmp_path / "lines") == (
        0,
        "16 runs read, 16 of them added\n",
    )
    assert shown(capsys, "--file", tmp_path / "new", "--export", "-")[1].encode() == (tmp_path / "lines").read_bytes()
    (tmp_path / "lines").write_text("x")
    assert shown(capsys, "--file", tmp_path / "new", "--import", tmp_path / "lines")[0] == 78


@pytest.mark.parametrize("words", [["--since", "soon"], ["a1", "--export", "-"], ["--limit", "0"]])
def test_wrong_words_are_refused(path, words, capsys):
    assert shown(capsys, "--file", path, *words)[0] == 64


def test_bars_are_as_high_as_their_share_and_plain_where_the_terminal_is():
    from preflight.cli.history_text import ASCII_BARS, bars

    drawn = bars((1.0, 0.5, None, 1.0))
    assert len(drawn) == 4
    assert drawn[2] == "x"
    assert drawn[0] == drawn[3] > drawn[1] or drawn[0] in ASCII_BARS


# --- where a run is kept -------------------------------------------------------------------------------------------------


def config(tmp_path, monkeypatch, text=""):
    file = tmp_path / "preflight.toml"
    file.write_text(f'[slurm]\nstate_dir = "{tmp_path}/state"\n{text}')
    file.chmod(0o644)
    monkeypatch.setenv("PREFLIGHT_CONFIG", str(file))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))


def test_the_machines_history_is_used_where_its_folder_is_ours_and_else_the_users_own(tmp_path, monkeypatch):
    config(tmp_path, monkeypatch)
    own = tmp_path / "mine/preflight/history.sqlite"
    assert run_history.file_to_write(None) == own
    assert own.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "state").mkdir(mode=0o700)
    assert run_history.file_to_write(None) == tmp_path / "state/history.sqlite"
    assert run_history.file_to_write(tmp_path / "named") == tmp_path / "named"
    assert run_history.file_to_read(None) == own
    History(tmp_path / "state/history.sqlite").add(report_of("r1"))
    assert run_history.file_to_read(None) == tmp_path / "state/history.sqlite"
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    assert run_history.own_history() == Path.home() / ".local/state/preflight/history.sqlite"


def test_a_run_is_kept_with_a_verdict_of_each_node_and_is_the_next_ones_past(tmp_path):
    history = History(tmp_path / "history.sqlite")
    for number in range(6):
        run_history.keep(history, report_of(f"r{number}"))
    assert set(history.last_verdicts()) == {"a1", "a2"}
    assert history.last_verdicts(sweeps=True) == {}
    past = run_history.past_of(history, report_of("now").evidence)
    assert {len(entry.busbw_bytes_per_s) for entry in past.entries} == {6}
    assert run_history.past_of(history, report_of("now", simulated=True).evidence) is None
    assert run_history.opened(None, off=True) is None


@pytest.mark.parametrize("how", ["broken", "link", "folder is gone"])
def test_a_history_that_cant_be_used_costs_a_line_and_no_result(tmp_path, capsys, how):
    path = tmp_path / "deep/history.sqlite"
    if how != "folder is gone":
        path.parent.mkdir()
        path.write_bytes(b"no database" * 1000) if how == "broken" else path.symlink_to("/dev/null")
    history = History(path)
    run_history.keep(history, report_of("r1"))
    assert run_history.past_of(history, report_of("r1").evidence) is None
    said = capsys.readouterr().err
    assert "this run is not in the history" in said
    assert len(said.splitlines()) <= 5


def test_a_judgement_of_a_node_is_kept_when_it_changes_or_a_day_has_passed(tmp_path):
    import msgspec

    from preflight.config import HistorySite, Site, SlurmSite
    from preflight.fleet.history_keep import keeper_of_judgements
    from preflight.model import Evidence
    from tests.builders import make_inventory

    site = Site(slurm=SlurmSite(state_dir=str(tmp_path)))
    keep = keeper_of_judgements(site, "n7")
    now_s = time.time() - 3 * DAY_S
    warn = Finding(check="clock_sync", subject="n7", verdict=Verdict.WARN, observed="off")
    base = msgspec.structs.replace(
        report_of("node", at_s=now_s),
        evidence=Evidence(inventory=make_inventory(1)),
        findings=(warn,),
        answer="go",
        command="node",
    )

    def at(hours, **changes):
        return keep(msgspec.structs.replace(base, started_at_s=now_s + hours * 3600, **changes))

    assert [at(0), at(1), at(2), at(3, findings=(), answer="go"), at(4), at(5), at(29)] == [
        True,
        False,
        False,
        True,
        True,
        False,
        True,
    ]
    history = History(site.history_file)
    assert {run.command for run in history.runs()} == {"agent"}
    assert history.last_verdicts()["n7"].verdict is Verdict.PASS
    assert history.node_story("n7").findings[0].node == "n7"
    assert keeper_of_judgements(msgspec.structs.replace(site, history=HistorySite(node_results=False)), "n7") is None


def test_a_prologs_result_is_kept_after_its_verdict_and_a_locked_history_costs_a_line(tmp_path, capsys):
    import sqlite3

    import msgspec

    from preflight.config import Site, SlurmSite
    from preflight.model import Evidence
    from preflight.slurm.remember import remember
    from preflight.slurm.telling import Telling
    from tests.builders import make_inventory

    site = Site(slurm=SlurmSite(state_dir=str(tmp_path)))
    report = msgspec.structs.replace(
        report_of("node-1", at_s=time.time()), evidence=Evidence(inventory=make_inventory(1)), command="slurm prolog"
    )
    telling = Telling("slurm prolog", "node0")
    remember(report, "node0", site, telling, guilty=True, drained=True)
    history = History(site.history_file)
    [verdict] = history.verdicts("node0")
    assert (verdict.verdict, verdict.drained, verdict.sweep) == (Verdict.FAIL, True, None)
    assert history.verdicts("node0", sweeps=True) == ()
    assert capsys.readouterr().err == ""
    other = sqlite3.connect(site.history_file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    remember(msgspec.structs.replace(report, run_id="node-2"), "node0", site, telling, guilty=False)
    other.execute("ROLLBACK")
    other.close()
    assert "not in the history" in capsys.readouterr().err
    assert len(history.runs()) == 1
    site.history_file.write_bytes(b"broken" * 5000)
    for ending in ("-wal", "-shm"):
        site.history_file.with_name(f"{site.history_file.name}{ending}").unlink(missing_ok=True)
    remember(report, "node0", site, telling, guilty=False)
    assert "is broken" in capsys.readouterr().err
    with pytest.raises(WorldError):
        history.runs()


def test_keeping_that_hangs_ends_and_the_alarm_ends_with_it(tmp_path, monkeypatch, capsys):
    from preflight.config import Site, SlurmSite
    from preflight.slurm import remember
    from preflight.slurm.limits import limited
    from preflight.slurm.telling import Telling

    monkeypatch.setattr(remember, "HARD_S", 0.05)
    monkeypatch.setattr(remember, "_append", lambda *_, **__: time.sleep(30))  # the real one is in SQLite by then
    began = time.monotonic()
    with limited(20):
        site = Site(slurm=SlurmSite(state_dir=str(tmp_path)))
        remember.remember(report_of("r1"), "n1", site, Telling("slurm prolog", "n1"), guilty=False)
    assert time.monotonic() - began < 20
    assert "not in the history: it took too long" in capsys.readouterr().err
