"""The files of the Slurm in a box (slurm.py): configuration, hooks, driver libraries, device files, our scripts as a site installs them."""

import os
import re
import stat
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tests import nvml_library
from tests.plan.launchers import slurm_box as base

if TYPE_CHECKING:
    from tests.cluster.slurm import SlurmCluster

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
CLUSTER_PORTS = (6817, 6818)  # Slurm's own, free in every namespace
DEFINES: dict[str, tuple[str, ...]] = {"healthy": (), "sick": ("REMAP_FAILED",), "hanging": ("HANG_INIT",)}

SITE = """
[agent]
munge_socket = "{cluster}/munge/socket"
[slurm]
enforce = true
state_dir = "{folder}/state"
textfile_dir = "{folder}/metrics"
"""
_CONF = """
GresTypes=gpu
PrologFlags=Alloc,DeferBatch
PrologEpilogTimeout=300
TopologyPlugin=topology/tree
"""
# Slurm gives a program none of this, a site's machine would: where the driver's library is, and Slurm's file, which 22.05 names to the node's prolog alone
_HOOK = """#!/bin/sh
place="{places}"
SLURM_CONF="{folder}/slurm.conf" PREFLIGHT_CONFIG="$place/preflight.toml" LD_LIBRARY_PATH="$place/nvml"
export SLURM_CONF PREFLIGHT_CONFIG LD_LIBRARY_PATH
[ -e "$place/before" ] && . "$place/before"
exec {program}
"""


def lay_out(cluster: "SlurmCluster") -> None:
    """Folders, driver libraries and device files."""
    for kind, defines in DEFINES.items():
        nvml_library.build(cluster.folder / "libraries" / kind, f"GPUS={max(cluster.gpus, 1)}", *defines)
    (cluster.folder / "libraries" / "missing").mkdir()
    (cluster.folder / "state").mkdir()
    (cluster.folder / "gpus").mkdir()
    for number in range(cluster.gpus):
        os.mknod(cluster.folder / "gpus" / f"nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    for name in (*cluster.nodes, "head"):
        place = cluster.place_of(name)
        place.mkdir(parents=True)
        (place / "metrics").mkdir()
        if name != "head":
            (cluster.folder / f"spool-{name}").mkdir()
            cluster.set_gpus(name, "healthy")
            (place / "boot_id").write_text(f"{uuid.uuid4()}\n")
    cluster.configure(SITE)


def install(cluster: "SlurmCluster") -> None:
    """The scripts of deploy/slurm, with the settings at their heads edited as a site does; deploy/preflight is the program that they call."""
    folder = cluster.folder / "deploy"
    folder.mkdir()
    (folder / "preflight").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m preflight "$@"\n')
    (folder / "preflight").chmod(0o755)
    for script in SCRIPTS.glob("*.sh"):
        settings = {"PREFLIGHT": folder / "preflight", "LOG": cluster.folder / f"{script.stem}.log"}
        if script.stem in {"prolog", "health"}:
            settings["TEXTFILE_DIR"] = cluster.folder / "nodes" / "$SLURMD_NODENAME" / "metrics"
        text = script.read_text()
        for name, value in settings.items():
            text, count = re.subn(rf"^{name}=\S*", f"{name}={value}", text, flags=re.MULTILINE)
            assert count == 1, f"{script} sets {name} {count} times"
        (folder / script.name).write_text(text)
        (folder / script.name).chmod(0o755)


def write_hook(cluster: "SlurmCluster", name: str, program: str, *, at_head: bool = False) -> Path:
    """A script by which Slurm runs a program for us, with the node's own driver library and configuration."""
    path = cluster.folder / name
    places = cluster.place_of("head") if at_head else cluster.folder / "nodes" / "$SLURMD_NODENAME"
    told = program.replace("{cluster}", str(cluster.folder))
    path.write_text(_HOOK.format(places=places, folder=cluster.folder, program=told))
    path.chmod(0o755)
    return path


def hooks(cluster: "SlurmCluster", prolog: str | None, prolog_slurmctld: str | None, health: str | None) -> str:
    """The lines of slurm.conf that name our programs."""
    lines = []
    if prolog:
        lines.append(f"Prolog={write_hook(cluster, 'prolog', prolog)}")
    if prolog_slurmctld:
        lines.append(f"PrologSlurmctld={write_hook(cluster, 'prolog-slurmctld', prolog_slurmctld, at_head=True)}")
    if health:
        lines.append(f"HealthCheckProgram={write_hook(cluster, 'health', health)}\nHealthCheckInterval=5")
    return "".join(f"{line}\n" for line in lines)


def write_conf(cluster: "SlurmCluster", more: str) -> None:
    """slurm.conf, gres.conf and topology.conf."""
    nodes, box, host = cluster.nodes, cluster.box, os.uname().nodename
    first = CLUSTER_PORTS[0] if box else base.free_port_range(len(nodes) + 1)
    lines = []
    for number, name in enumerate(nodes):
        address = f"NodeHostname={name} NodeAddr={box.address(name)} Port={CLUSTER_PORTS[1]}" if box else ""
        address = address or f"NodeHostname={host} NodeAddr=127.0.0.1 Port={first + 1 + number}"
        gres = f" Gres=gpu:{cluster.gpus}" if cluster.gpus else ""
        lines.append(f"NodeName={name} {address} CPUs={cluster.cpus[name]} RealMemory=1000{gres} State=UNKNOWN")
    head = f"{host}({'10.77.0.254' if box else '127.0.0.1'})"
    text = base.CONF.format(host=head, port=first, folder=cluster.folder, nodes="\n".join(lines))
    given = [line for line in (text + _CONF + more).splitlines() if "=" in line]
    # of a key that is given twice, the later holds, save where each line is one of several
    settings = {line if line.startswith(("NodeName", "PartitionName")) else line.split("=")[0]: line for line in given}
    (cluster.folder / "slurm.conf").write_text("\n".join(settings.values()) + "\n")
    files = f"{cluster.folder}/gpus/nvidia[0-{cluster.gpus - 1}]"
    gres = f"NodeName=n[1-{len(nodes)}] Name=gpu File={files}\n" if cluster.gpus else ""
    (cluster.folder / "gres.conf").write_text(gres)
    half = len(nodes) - len(nodes) // 2
    leaves = f"SwitchName=leaf1 Nodes=n[1-{half}]\nSwitchName=leaf2 Nodes=n[{half + 1}-{len(nodes)}]\n"
    (cluster.folder / "topology.conf").write_text(f"{leaves}SwitchName=spine Switches=leaf[1-2]\n")
