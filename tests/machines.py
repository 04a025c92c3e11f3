"""Whole machines as recorded trees."""

from tests.config_spaces import DEAD, config_space
from tests.trees import Tree


def hgx(tree: Tree, *, dead=()):
    """Eight GPUs, each with a 400 Gb/s InfiniBand card behind the same switch, and an Ethernet card for the system."""
    for number in range(8):
        root = f"pci0000:{0x10 + number:02x}/0000:{0x10 + number:02x}:01.0"
        switch = f"{root}/0000:{0x20 + number:02x}:00.0"
        down = [f"{switch}/0000:{0x20 + number:02x}:0{port}.0" for port in (1, 2)]
        for path, acs in ((root, 0x001D), (switch, 0), *((path, 0) for path in down)):
            tree.pci(path, vendor="0x1000", class_code="0x060400", config=config_space(acs=acs))
        gpu, card = f"{down[0]}/0000:{0x40 + number:02x}:00.0", f"{down[1]}/0000:{0x60 + number:02x}:00.0"
        tree.gpu(gpu, numa=number // 4, config=DEAD if number in dead else config_space())
        device = tree.pci(
            card,
            numa=number // 4,
            driver="mlx5_core",
            speed="32.0 GT/s PCIe",
            width=16,
            config=config_space(max_read_request=4096),
        )
        tree.port(tree.hca(f"mlx5_{number}", device))
        tree.nic(f"ib{number}", device=device, hardware_type=32, mtu=4092, port=0)
        tree.write(f"dev/nvidia{number}", "")
    system(tree)
    tree.write("proc/2/comm", "kthreadd\n")
    tree.write("proc/700/comm", "nv-fabricmanage\n")
    tree.write("proc/700/stat", "700 (nv-fabricmanage) S 1\n")


def system(tree: Tree) -> None:
    """What a machine with the open driver has beside GPUs and HCAs: an interface with the default route, peermem, no IOMMU."""
    tree.nic("eth0", device=tree.pci("pci0000:70/0000:70:01.0/0000:71:00.0"))
    routes = "Iface Destination Gateway Flags RefCnt Use Metric Mask\neth0 00000000 010002C0 0003 0 0 0 00000000\n"
    tree.write("proc/1/net/route", routes)
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06\n"
    tree.write("proc/driver/nvidia/version", version)
    tree.write("proc/modules", "nvidia_peermem 16384 0 - Live 0x0\n")
    tree.folder("sys/class/iommu")
