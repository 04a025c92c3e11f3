"""Small sysfs and procfs trees, spelled as Linux does, made in a test's own folder."""

import os
from pathlib import Path

BOOT_ID = "6f1a2b3c-0000-4000-8000-123456789abc"
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


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

    def write(self, path: str, text: str | bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())

    def folder(self, path: str) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)

    def link(self, path: str, target: str) -> None:
        """A relative symbolic link, as sysfs has them."""
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(os.path.relpath(self.root / target, at.parent))

    def pci(
        self,
        path: str,
        *,
        vendor: str = "0x15b3",
        class_code: str = "0x020000",
        numa: int = -1,
        config: bytes | None = None,
        speed: str | None = None,
        width: int | None = None,
        driver: str | None = None,
    ) -> str:
        """A device at "pci0000:00/0000:00:01.0/...", its bridges with it; gives its folder. `speed`, `width`: now and at most."""
        above = Path(path).parent
        if ":" in above.name and not above.name.startswith("pci") and not (self.root / f"sys/devices/{above}").exists():
            self.pci(str(above), vendor="0x1000", class_code="0x060400", speed=speed, width=width)
        folder = f"sys/devices/{path}"
        self.write(f"{folder}/vendor", f"{vendor}\n")
        self.write(f"{folder}/class", f"{class_code}\n")
        self.write(f"{folder}/numa_node", f"{numa}\n")
        if config is not None:
            self.write(f"{folder}/config", config)
        for kind in ("current", "max"):
            if speed is not None:
                self.write(f"{folder}/{kind}_link_speed", f"{speed}\n")
            if width is not None:
                self.write(f"{folder}/{kind}_link_width", f"{width}\n")
        if driver is not None:
            self.folder(f"sys/bus/pci/drivers/{driver}")
            self.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
        self.link(f"sys/bus/pci/devices/{Path(path).name}", folder)
        return folder

    def gpu(self, path: str, *, numa: int = -1, class_code: str = "0x030200", config: bytes | None = None) -> str:
        """An NVIDIA 3D controller."""
        return self.pci(path, vendor="0x10de", class_code=class_code, numa=numa, config=config)

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
        port: int | None = None,
    ) -> None:
        """An interface. `device`: its PCI folder, None if it is virtual; `port`: of that device, from 0."""
        folder = f"{device}/net/{name}" if device else f"sys/devices/virtual/net/{name}"
        values = {
            "type": hardware_type,
            "operstate": operstate,
            "mtu": mtu,
            "flags": flags,
            "carrier": carrier,
            "speed": speed,
            "dev_port": port,
        }
        for file, value in values.items():
            if value is not None:
                self.write(f"{folder}/{file}", f"{value}\n")
        if device:
            self.link(f"{folder}/device", device)
        self.link(f"sys/class/net/{name}", folder)

    def hca(self, name: str, device: str, *, firmware: str = "28.39.1002", board: str = "MT_0000000838") -> str:
        """An RDMA device on that PCI folder, without ports; gives its folder."""
        folder = f"{device}/infiniband/{name}"
        self.write(f"{folder}/fw_ver", f"{firmware}\n")
        self.write(f"{folder}/board_id", f"{board}\n")
        self.write(f"{folder}/node_guid", "b83f:d203:00aa:0001\n")
        self.folder(f"{folder}/ports")
        self.link(f"{folder}/device", device)
        self.link(f"sys/class/infiniband/{name}", folder)
        return folder

    def port(
        self,
        hca: str,
        number: int = 1,
        *,
        state: str = "4: ACTIVE",
        physical: str = "5: LinkUp",
        rate: str = "400 Gb/sec (4X NDR)",
        layer: str = "InfiniBand",
        lid: str = "0x1b",
        sm_lid: str = "0x1",
        gids: dict[int, tuple[str, str, str]] | None = None,
        counters: dict[str, str] | None = None,
        hw_counters: dict[str, str] | None = None,
    ) -> None:
        """A port of that HCA's folder. `gids`: index -> address, type, interface; empty texts are refused by the kernel, and absent here."""
        at = f"{hca}/ports/{number}"
        values = {
            "state": state,
            "phys_state": physical,
            "rate": rate,
            "link_layer": layer,
            "lid": lid,
            "sm_lid": sm_lid,
        }
        for file, text in values.items():
            self.write(f"{at}/{file}", f"{text}\n")
        gids = gids if gids is not None else {0: ("fe80:0000:0000:0000:b83f:d203:00aa:0001", "IB/RoCE v1", "")}
        for index in range(max(gids, default=0) + 4):
            address, kind, interface = gids.get(index, (EMPTY_GID, "", ""))
            self.write(f"{at}/gids/{index}", f"{address}\n")
            for folder, text in (("types", kind), ("ndevs", interface)):
                self.folder(f"{at}/gid_attrs/{folder}")
                if text:
                    self.write(f"{at}/gid_attrs/{folder}/{index}", f"{text}\n")
        for index, key in enumerate(("0xffff", "0x8001", "0x0000", "0x0000")):
            self.write(f"{at}/pkeys/{index}", f"{key}\n")
        for folder, found in (("counters", counters), ("hw_counters", hw_counters)):
            for counter, text in (found or {}).items():
                self.write(f"{at}/{folder}/{counter}", f"{text}\n")
