"""The unit of the resident agent says what the program understands, and what its README says of it."""

import configparser
import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.cli.agent import command
from preflight.config import AgentSite
from preflight.fleet.agent import END_S
from preflight.fleet.server import SHUTDOWN_S

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = FOLDER / "preflight-agent.service"
README = (FOLDER / "README.md").read_text()


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read_string(UNIT.read_text())
    return unit["Service"]


def test_the_command_line_is_one_that_the_agent_takes(service):
    program, name, *flags = service["ExecStart"].split()
    assert (program, name) == ("/opt/preflight/bin/preflight", "agent")
    known = {opt for parameter in command.params for opt in parameter.opts}
    assert set(flags) <= known
    assert {"--munge", "--give-way"} <= set(flags)


def test_systemd_waits_longer_than_the_agent_takes_to_end(service):
    assert service["Type"] == "notify"
    assert END_S + SHUTDOWN_S <= 5 < int(service["TimeoutStopSec"])
    assert int(service["WatchdogSec"]) >= 10


def test_what_would_blind_it_is_not_among_the_hardening(service):
    """/dev/nvidia*, /dev/kmsg, the processes of others, other users for its workers."""
    blinding = {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "ProtectKernelLogs", "ProtectProc"}
    blinding |= {"ProcSubset", "PrivateUsers", "PrivateNetwork", "MemoryDenyWriteExecute", "DynamicUser", "User"}
    assert not blinding & set(service)
    assert {"CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SYSLOG"} <= set(service["CapabilityBoundingSet"].split())
    assert service["LimitMEMLOCK"] == "infinity"


def test_each_restriction_says_why_it_is_there():
    lines = UNIT.read_text().splitlines()
    silent = {"ProtectKernelModules", "ProtectControlGroups", "ProtectHostname", "LockPersonality", "RestrictRealtime"}
    silent |= {"RestrictSUIDSGID", "SystemCallArchitectures"}  # they take away what nothing here uses
    for above, line in itertools.pairwise(lines):
        match = re.match(r"((?:Protect|Private|Restrict|NoNew|Capability)\w*)=", line)
        if match and match[1] not in silent | {"RestartPreventExitStatus"}:
            assert above.startswith("#"), line


def test_the_readme_names_every_key_of_the_agent_that_it_shows():
    shown = re.search(r"```toml\n\[agent\]\n(.*?)```", README, re.DOTALL)
    assert shown
    keys = set(re.findall(r"^(\w+) =", shown[1], re.MULTILINE))
    assert keys <= set(AgentSite.__struct_fields__)


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze says whether a unit is well-formed"
)
def test_systemd_finds_nothing_wrong(tmp_path):
    for name in ("preflight-agent.service", "preflight-exporter.service", "preflight.slice"):
        text = (FOLDER / name).read_text().replace("/opt/preflight/bin/preflight", sys.executable)
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
