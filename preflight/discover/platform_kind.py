"""What this system runs in: a virtual machine, a container, on which board.

Sources: systemd-detect-virt(1) for the DMI names of virtual machines; the marks that container engines leave: /.dockerenv (Docker), /run/.containerenv (Podman),
/run/systemd/container and the variable `container` of process 1 (systemd's container interface), /.singularity.d (Apptainer), names of cgroups.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from preflight.discover.files import is_folder, read_bytes, read_text
from preflight.model import Platform

_MAX_ENVIRONMENT = 65536
# word in the DMI vendor, product or BIOS vendor -> kind; the first that is found counts
_DMI_KINDS = {
    "Amazon EC2": "amazon",
    "Google": "google",
    "Microsoft Corporation": "microsoft",
    "VMware": "vmware",
    "VirtualBox": "oracle",
    "Alibaba Cloud": "alibaba",
    "OpenStack": "kvm",
    "KVM": "kvm",
    "QEMU": "qemu",
    "Xen": "xen",
    "Bochs": "bochs",
    "Parallels": "parallels",
}
# how engines name cgroups
_CGROUPS = (
    ("kubepods", "kubernetes"),
    ("docker", "docker"),
    ("libpod", "podman"),
    ("cri-containerd", "containerd"),
    ("containerd", "containerd"),
    ("/lxc", "lxc"),
    ("machine.slice", "systemd-nspawn"),
)
_NO_NAMES = {
    "",
    "to be filled by o.e.m.",
    "default string",
    "system manufacturer",
    "system product name",
    "none",
    "unknown",
    "not specified",
}


def read_platform(root: Path, environ: Mapping[str, str]) -> Platform:
    """What the system below that root runs in. `environ`: of this process, where Kubernetes and Apptainer leave marks."""
    dmi = {name: read_text(root / f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name", "bios_vendor")}
    return Platform(
        virtual_machine=_virtual_machine(root, dmi),
        container=_container(root, environ),
        machine=_machine(root, dmi),
    )


def _machine(root: Path, dmi: Mapping[str, str | None]) -> str | None:
    words = [word for word in (dmi["sys_vendor"], dmi["product_name"]) if word and word.casefold() not in _NO_NAMES]
    model = read_text(root / "proc/device-tree/model") if not words else None
    return " ".join(words) or (model.strip("\0") if model else None) or None


def _virtual_machine(root: Path, dmi: Mapping[str, str | None]) -> str | None:
    """The hypervisor's kind: "none" only where the CPU would tell of one (x86), and doesn't."""
    if "microsoft" in (read_text(root / "proc/sys/kernel/osrelease") or "").casefold():
        return "wsl"
    flags = re.search(r"^flags\s*:(.*)$", read_text(root / "proc/cpuinfo") or "", re.MULTILINE)
    if flags is not None and " hypervisor" not in f"{flags[1]} ".replace("\t", " "):
        return "none"
    kind = _dmi_kind(dmi) or read_text(root / "sys/hypervisor/type")
    if flags is not None:
        return kind or "other"
    # makers of clouds name their own bare machines as well, so that a CPU without the flag (Arm) leaves those open
    return kind if kind in {"kvm", "qemu", "vmware", "xen"} else None


def _dmi_kind(dmi: Mapping[str, str | None]) -> str | None:
    told = " ".join(word for word in dmi.values() if word)
    return next((kind for word, kind in _DMI_KINDS.items() if word in told), None)


def _container(root: Path, environ: Mapping[str, str]) -> str | None:
    """The engine's kind: "none" only where systemd runs the whole system as process 1, and nothing speaks of a container."""
    marks = (
        (environ.get("KUBERNETES_SERVICE_HOST"), "kubernetes"),
        (os.path.lexists(root / "run/secrets/kubernetes.io"), "kubernetes"),
        (os.path.lexists(root / "run/.containerenv"), "podman"),
        (os.path.lexists(root / ".dockerenv"), "docker"),
        (environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"), "apptainer"),
        (os.path.lexists(root / ".singularity.d"), "apptainer"),
    )
    kind = next((kind for mark, kind in marks if mark), None)
    kind = kind or read_text(root / "run/systemd/container") or _first_variable(root) or _of_cgroups(root)
    if kind:
        return _word(kind)
    is_systemd = read_text(root / "proc/1/comm") in {"systemd", "init"} and is_folder(root / "run/systemd/system")
    return "none" if is_systemd else None


def _first_variable(root: Path) -> str | None:
    """`container` among the variables of process 1, which only its own user may read."""
    try:
        data = read_bytes(root / "proc/1/environ", _MAX_ENVIRONMENT)
    except OSError:
        return None
    found = next((entry for entry in data.split(b"\0") if entry.startswith(b"container=")), b"")
    return found.partition(b"=")[2].decode("utf-8", errors="replace") or None


def _of_cgroups(root: Path) -> str | None:
    """From the cgroup of process 1; this process's own may be a Slurm step's or a service's."""
    text = read_text(root / "proc/1/cgroup") or ""
    return next((kind for word, kind in _CGROUPS if word in text), None)


def _word(kind: str) -> str:
    """A mark's text as one short word."""
    return re.sub(r"[^A-Za-z0-9._-]", "", kind)[:32] or "other"
