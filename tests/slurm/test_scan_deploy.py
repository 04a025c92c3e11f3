"""The examples that start a sweep every hour: each calls a command that there is, and gives it the time that it may take."""

import configparser
import re
from pathlib import Path

import yaml

from preflight.cli.scan import command
from preflight.config import ScanSite
from preflight.model.units import parse_seconds

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "preflight-scan.service"
TIMER = DEPLOY / "systemd" / "preflight-scan.timer"
SCRONTAB = DEPLOY / "slurm" / "scan.scrontab"
CRONJOB = DEPLOY / "kubernetes" / "scan-cronjob.yaml"
NEEDS_S = ScanSite().jitter_s + ScanSite().sweep_s + ScanSite().time_limit_s
MARGIN_S = 60.0  # three tries of 10 s to cancel its jobs, and some more


def sections(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str
    parser.read_string(path.read_text())
    return parser


def test_the_unit_ends_by_itself_in_time_and_takes_verdicts_for_no_failure():
    service = sections(UNIT)["Service"]
    assert service["Type"] == "oneshot"
    assert service["ExecStart"].split()[1:] == [command.name]
    assert set(service["SuccessExitStatus"].split()) == {"3", "10"}
    assert parse_seconds(service["TimeoutStartSec"]) > NEEDS_S
    assert float(service["TimeoutStopSec"]) >= MARGIN_S
    assert service["User"] != "root"


def test_the_timer_is_spread_and_made_up_for():
    timer = sections(TIMER)["Timer"]
    assert timer["Persistent"] == "true"
    assert "RandomizedDelaySec" in timer


def test_the_scrontab_keeps_our_prologs_off_and_leaves_time_to_cancel():
    text = SCRONTAB.read_text()
    assert '--comment="preflight: off"' in text
    hours, minutes, seconds = map(int, re.search(r"--time=(\d+):(\d+):(\d+)", text).groups())
    assert hours * 3600 + minutes * 60 + seconds > NEEDS_S
    assert int(re.search(r"--signal=B:TERM@(\d+)", text)[1]) >= MARGIN_S
    (line,) = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert line.split()[5:] == ["exec", "/opt/preflight/bin/preflight", "scan"]


def test_the_cronjob_runs_one_at_a_time_as_an_ordinary_user():
    cronjob, priority = yaml.safe_load_all(CRONJOB.read_text())
    job = cronjob["spec"]["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    assert cronjob["spec"]["concurrencyPolicy"] == "Forbid"
    assert job["activeDeadlineSeconds"] > NEEDS_S
    assert job["backoffLimit"] == 0
    assert pod["terminationGracePeriodSeconds"] >= MARGIN_S
    assert pod["securityContext"]["runAsNonRoot"]
    assert priority["metadata"]["name"] == pod["priorityClassName"]
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
