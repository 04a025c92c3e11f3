"""Small sysfs and procfs trees, spelled as Linux does, made in a test's own folder."""

import os
from pathlib import Path

BOOT_ID = "6f1a2b3c-0000-4000-8000-123456789abc"


class Tree:
    """A filesystem root. A fresh one is a two-socket node with two NUMA nodes, 4 CPUs, 64 GiB and a loopback."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/sys/kernel/hostname", "cn07\n")
        self.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
        self.write("proc/sys/kernel/random/boot_id", f"{BOOT_ID}\n")
        self.write("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:        1024 kB\n")
        cpu = "processor\t: {}\nmodel name\t: Example CPU 9000\nflags\t\t: fpu\n\n"
        self.write("proc/cpuinfo", "".join(cpu.format(i) for i in range(4)))
        for node in (0, 1):
            self.write(f"sys/devices/system/node/node{node}/cpulist", "0-1\n")
        self.folder("sys/bus/pci/devices")
        self.nic("lo", hardware_type=772, operstate="unknown", mtu=65536, flags="0x9", carrier="1", speed=None)

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def folder(self, path: str) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)

    def link(self, path: str, target: str) -> None:
        """A relative symbolic link, as sysfs has them."""
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(os.path.relpath(self.root / target, at.parent))

    def pci(self, path: str, *, vendor: str = "0x15b3", class_code: str = "0x020000", numa: int = -1) -> str:
        """A device at "pci0000:00/0000:00:01.0/..."; gives its folder."""
        folder = f"sys/devices/{path}"
        self.write(f"{folder}/vendor", f"{vendor}\n")
        self.write(f"{folder}/class", f"{class_code}\n")
        self.write(f"{folder}/numa_node", f"{numa}\n")
        self.link(f"sys/bus/pci/devices/{Path(path).name}", folder)
        return folder

    def gpu(self, path: str, *, numa: int = -1, class_code: str = "0x030200") -> str:
        """An NVIDIA 3D controller."""
        return self.pci(path, vendor="0x10de", class_code=class_code, numa=numa)

    def nic(
        self,
        name: str,
        *,
        device: str | None = None,
        hardware_type: int = 1,
        operstate: str = "up",
        mtu: int = 1500,
        flags: str = "0x1003",
        carrier: str | None = "1",
        speed: int | None = 100000,
    ) -> None:
        """An interface. `device`: its PCI folder, None if it is virtual."""
        folder = f"{device}/net/{name}" if device else f"sys/devices/virtual/net/{name}"
        values = {
            "type": hardware_type,
            "operstate": operstate,
            "mtu": mtu,
            "flags": flags,
            "carrier": carrier,
            "speed": speed,
        }
        for file, value in values.items():
            if value is not None:
                self.write(f"{folder}/{file}", f"{value}\n")
        if device:
            self.link(f"{folder}/device", device)
        self.link(f"sys/class/net/{name}", folder)
