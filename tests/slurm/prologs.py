"""Prologs as slurmd runs them: no PATH, no HOME, only SLURM_* variables; the site's script with this project's program in it; programs of Slurm that note that they were called."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.nvml_library import build

ROOT = Path(__file__).parents[2]
JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_USER": "ada",
    "SLURM_NODELIST": "n[1-4]",
    "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    "SLURMD_NODENAME": "n1",
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
}


def site(folder: Path, text: str = "", slurm: str = "") -> Path:
    """A configuration with its folders below this one. `slurm`: more keys of [slurm]; `text`: more sections."""
    (folder / "metrics").mkdir(exist_ok=True)
    path = folder / "preflight.toml"
    keys = f'state_dir = "{folder}/state"\ntextfile_dir = "{folder}/metrics"\nbin_dir = "{folder}/bin"\n'
    path.write_text(f"[slurm]\n{keys}{slurm}\n{text}")
    path.chmod(0o644)
    return path


def slurm_programs(folder: Path, script: str = "exit 1") -> Path:
    """The file in which each call of a stand-in for Slurm's programs becomes a line. `script`: what they do besides."""
    (folder / "bin").mkdir(exist_ok=True)
    calls = folder / "calls"
    for name in ("scontrol", "sinfo", "squeue", "sacct"):
        path = folder / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n{script}\n')
        path.chmod(0o755)
    return calls


def libraries(folder: Path) -> dict[str, Path]:
    """Folders of driver libraries: healthy, sick (a row of GPU 7 could not be remapped), hanging."""
    defines = {"healthy": (), "sick": ("REMAP_FAILED",), "hanging": ("HANG_INIT",)}
    return {name: build(folder / name, *each) for name, each in defines.items()}


def run(
    *arguments: str, library: Path | None = None, command: str = "prolog", **environ: str
) -> subprocess.CompletedProcess[str]:
    """`preflight slurm prolog` with these arguments. `library`: the folder of the driver's library."""
    variables = {**JOB, **environ, **({"LD_LIBRARY_PATH": str(library)} if library else {})}
    return subprocess.run(
        [sys.executable, "-m", "preflight", "slurm", command, *arguments],
        env={key: value for key, value in variables.items() if value},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def metrics(folder: Path, command: str = "prolog", node: str = "n1") -> dict[tuple[str, str], float]:
    """(family, its own label's value) -> value, read by the library's parser from the file that the collector would read."""
    return read_metrics(folder / f"preflight-slurm-{command}-{node}.prom")


def read_metrics(path: Path) -> dict[tuple[str, str], float]:
    """All samples of a file: (name, values of the labels that are the family's own)."""
    found = {}
    for family in text_string_to_metric_families(path.read_text()):
        assert family.samples, family
        for sample in family.samples:
            own = [value for key, value in sample.labels.items() if key not in ("command", "node")]
            assert (sample.name, " ".join(own)) not in found
            found[sample.name, " ".join(own)] = sample.value
    return found


def script(folder: Path, name: str = "prolog.sh", **settings: str | int | Path) -> Path:
    """The site's copy of a script of deploy/slurm, with these settings at its top."""
    text = (ROOT / "deploy/slurm" / name).read_text()
    for key, value in {"LOG": folder / "log", "LOGGER": "/nowhere/logger", **settings}.items():
        text, count = re.subn(rf"^{key}=\S*", f"{key}={value}", text, flags=re.MULTILINE)
        assert count == 1, key
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def program(folder: Path, lines: str, name: str = "preflight", mode: int = 0o755) -> Path:
    """A program of these lines of shell."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(mode)
    return path


def of_group(group: int, *, states: str = "RSDTtI") -> list[int]:
    """The processes of a group or session that are in one of these states: zombies aside, if nothing else is said."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] in states and group in (int(fields[2]), int(fields[3])):
                found.append(int(entry.name))
    return found


def wait_until(condition, what: str, timeout_s: float = 60) -> None:
    """Looked at every 0.02 s."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return "\nState:\tZ" not in (Path("/proc") / str(pid) / "status").read_text()
    except OSError:
        return False


def environment(pid: int) -> dict[str, str]:
    """Of a process that runs."""
    data = (Path("/proc") / str(pid) / "environ").read_bytes()
    return dict(entry.split("=", 1) for entry in os.fsdecode(data).split("\0") if "=" in entry)


def run_code(code: str, config: Path, library: Path) -> subprocess.CompletedProcess[str]:
    """This code in a Python of its own, as a prolog's environment has it; the prolog's arguments are in its sys.argv."""
    return subprocess.run(
        [sys.executable, "-c", code, "slurm", "prolog", "--config", str(config)],
        env={**JOB, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
