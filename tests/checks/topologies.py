"""33 real machines as `nvidia-smi topo -m` showed them, from public bug reports (`url` of each; rows that a report lacks are filled in by symmetry).

What is compared: the verdict of all checks of how a node is joined, the facts that the reasons must hold, and the part that is blamed.
"""

from typing import NamedTuple

import msgspec

from preflight.model import Expected, Gpu, GpuPeer, Hca, Node, NvlinkLayout, Profile
from preflight.model.gpu import Ancestor

NCCL = "https://github.com/NVIDIA/nccl/issues/"
TESTS = "https://github.com/NVIDIA/nccl-tests/issues/"


class Machine(NamedTuple):
    """One machine. `pairs`, `nics`: rows of the matrix; `product` None: nobody says, `profile` the name in PROFILES (None: none exists). `facts`: words that the reasons hold."""

    name: str
    url: str
    product: str | None
    profile: str | None
    pairs: list[list[str]]
    nics: dict[str, list[str]]
    numa: str
    verdict: str
    facts: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()
    p2p: str | None = None  # what `nvidia-smi topo -p2p r` says of every pair, in our words


def every(number: int, label: str) -> list[list[str]]:
    """All pairs alike."""
    return [["X" if a == b else label for b in range(number)] for a in range(number)]


def rows(text: str) -> list[list[str]]:
    """A matrix as it is printed, rows separated by slashes."""
    return [row.split() for row in text.strip().split("/")]


def blocks(number: int, size: int, label: str) -> list[list[str]]:
    """GPUs in blocks: that label inside, SYS between."""
    return [
        ["X" if a == b else label if a // size == b // size else "SYS" for b in range(number)] for a in range(number)
    ]


def columns(names: str, text: str) -> dict[str, list[str]]:
    """NIC columns from rows, one row per GPU: NIC -> how close it is to each GPU."""
    table = rows(text)
    return {name: [row[column] for row in table] for column, name in enumerate(names.split())}


def numbered(count: int) -> str:
    return " ".join(f"NIC{index}" for index in range(count))


def near(
    count: int,
    own: dict[int, str],
    close: str = "PIX",
    *,
    sockets: str = "00001111",
    same: str = "NODE",
    aside: str = "",
) -> dict[str, list[str]]:
    """`own`: GPU -> its NICs by number, "2" or "0 1". `sockets`: a letter per GPU. `same`: how close a NIC is to the other GPUs of the socket. `aside`: "8:0" is
    NIC 8, nobody's, on socket 0; others that are nobody's are SYS to all.
    """
    socket_of = {int(nic): sockets[gpu] for gpu, nics in own.items() for nic in nics.split()}
    socket_of |= {int(nic): socket for nic, socket in (each.split(":") for each in aside.split())}

    def relation(nic: int, gpu: int) -> str:
        if str(nic) in own.get(gpu, "").split():
            return close
        return same if socket_of.get(nic) == sockets[gpu] else "SYS"

    return {f"NIC{nic}": [relation(nic, gpu) for gpu in range(len(sockets))] for nic in range(count)}


def layout(gpus: int, kind: str, per_pair: tuple[int, ...], per_gpu: int) -> NvlinkLayout:
    return NvlinkLayout(gpus=gpus, kind=kind, per_pair=per_pair, per_gpu=per_gpu, source="test")


def profile(name: str, *layouts: NvlinkLayout, rate: float | None = None, fabric: str | None = None) -> Profile:
    """A profile with layouts only. `rate`: the line rate that drivers report for a link, GB/s."""
    return Profile(
        name=name,
        gpu_names=(name,),
        nvlink_layouts=layouts,
        fabric=fabric,
        link_bytes_per_s=None if rate is None else Expected(value=rate * 1e9, source="test"),
    )


# link counts and line rates: nvidia-smi outputs in public reports (NVIDIA/nccl issues 933, 1617, 78; Azure/azhpc-diagnostics issue 73)
A100_SXM = profile("A100-SXM", layout(8, "switched", (12,), 12), layout(4, "mesh", (4,), 12), rate=25, fabric="manager")
A800_SXM = profile("A800-SXM", layout(8, "switched", (8,), 8), rate=25, fabric="manager")
H100_SXM = profile(
    "H100-SXM", layout(8, "switched", (18,), 18), layout(4, "mesh", (6,), 18), rate=26.562, fabric="node"
)
H100_NVL = profile("H100-NVL", layout(2, "bridge", (12,), 12), rate=26.562, fabric="none")
B200 = profile("B200", layout(8, "switched", (18,), 18), rate=53.125, fabric="node")
GB200 = profile("GB200", layout(4, "switched", (18,), 18), rate=53.125, fabric="rack")
V100_SXM2 = profile("V100-SXM2", layout(8, "cube", (1, 2), 6), rate=25.781, fabric="none")
V100_SXM3 = profile("V100-SXM3", layout(16, "switched", (6,), 6), rate=25.781, fabric="manager")
A100_PCIE = profile("A100-PCIe", layout(2, "bridge", (12,), 12), rate=25, fabric="none")
WORKSTATION = profile("RTX-A6000", layout(2, "bridge", (4,), 4), rate=14.0625, fabric="none")
NO_NVLINK = profile("no NVLink", fabric="none")
PROFILES = {
    each.name: each
    for each in (A100_SXM, A800_SXM, H100_SXM, H100_NVL, B200, GB200, V100_SXM2, V100_SXM3, A100_PCIE, WORKSTATION, NO_NVLINK)
}  # fmt: skip

ONE_EACH = {gpu: str(gpu) for gpu in range(8)}
LOST_GPU_2 = [
    ["X" if a == b else ("NODE" if a < 4 and b < 4 else "SYS") if 2 in (a, b) else "NV18" for b in range(8)]
    for a in range(8)
]
CUBE = rows(
    "X NV2 NV2 NV1 NV1 SYS SYS SYS / NV2 X NV1 NV2 SYS NV1 SYS SYS / NV2 NV1 X NV1 SYS SYS NV2 SYS / NV1 NV2 NV1 X SYS SYS SYS NV2 /"
    "NV1 SYS SYS SYS X NV2 NV2 NV1 / SYS NV1 SYS SYS NV2 X NV1 NV2 / SYS SYS NV2 SYS NV2 NV1 X NV1 / SYS SYS SYS NV2 NV1 NV2 NV1 X"
)
DGX_A100_NICS = {gpu: f"{gpu // 2 * 2} {gpu // 2 * 2 + 1}" for gpu in range(8)}

MACHINES = (
    Machine("2gpu-bridge-nv3-partial", f"{NCCL}557", "NVIDIA RTX A6000", "RTX-A6000", every(2, "NV3"), {}, "- -",
            "FAIL", ("3 of 4 NVLinks", "bridge"), ("GPU 0 - GPU 1",)),
    Machine("2gpu-phb-p2p-gns", "https://github.com/noonghunna/club-3090/issues/1140", "NVIDIA GeForce RTX 5090", None,
            every(2, "PHB"), {}, "0 0", "PASS", ("not supported by this GPU",), p2p="gpu"),
    Machine("8gpu-10nic-all-sys-one-pix", "https://github.com/deepseek-ai/DeepEP/issues/128", None, None,
            every(8, "SYS"), near(10, ONE_EACH, same="SYS"), "0 0 0 0 1 1 1 1",
            "UNKNOWN", ("a view that hides it", "dead fabric", "which product")),
    Machine("a100-pcie-8gpu-8nic", f"{NCCL}1405", "NVIDIA A100 80GB PCIe", "A100-PCIe", blocks(8, 4, "PIX"),
            near(8, {gpu: "1 3 4 5" if gpu < 4 else "0 2 6 7" for gpu in range(8)}), "0 0 0 0 1 1 1 1",
            "PASS", ("without a bridge",)),
    Machine("a100-sxm-4gpu-2nic", f"{NCCL}595", "NVIDIA A100-SXM4-40GB", "A100-SXM", every(4, "NV4"),
            columns("mlx5_0 mlx5_1", "SYS SYS / PIX SYS / SYS PIX / SYS SYS"), "1 0 3 2",
            "PASS", ("NV4 on all 6 pairs", "GPU 1: mlx5_0", "GPU 2: mlx5_1")),
    Machine("a100-sxm-4gpu-4nic", f"{TESTS}331", "NVIDIA A100 SXM", "A100-SXM", every(4, "NV4"),
            columns(numbered(4), "PXB SYS SYS SYS / SYS PXB SYS SYS / SYS SYS PXB SYS / SYS SYS SYS PXB"), "- - - -",
            "PASS", ("NV4 on all 6 pairs",)),
    Machine("a800-8gpu-9nic-nv8-healthy", f"{NCCL}933", "NVIDIA A800-SXM4-80GB", "A800-SXM", every(8, "NV8"),
            near(9, {0: "2", 1: "4", 2: "6", 3: "8", 4: "1", 5: "3", 6: "5", 7: "7"}, aside="0:0"), "0 0 0 0 1 1 1 1",
            "PASS", ("NV8 on all 28 pairs", "GPU 0: NIC2, GPU 1: NIC4, GPU 2: NIC6, GPU 3: NIC8, GPU 4: NIC1, GPU 5: NIC3, GPU 6: NIC5, GPU 7: NIC7", "nobody's: NIC0")),
    Machine("b200-8gpu-12nic-gpu2-no-nvlink", "https://github.com/vllm-project/vllm/issues/16336", "NVIDIA B200", "B200",
            LOST_GPU_2, near(12, ONE_EACH, "PXB", aside="8:0 9:0 10:1 11:1"), "0 0 0 0 1 1 1 1",
            "FAIL", ("NVLink to 0 of 7 peers", "the others to 6 of 6", "fabric registration"), ("GPU 2",)),
    Machine("b200-8gpu-13nic-reversed", "https://github.com/vllm-project/vllm/issues/31594", "NVIDIA B200", "B200",
            every(8, "NV18"), near(13, {gpu: str(11 - gpu) for gpu in range(8)}, aside="12:0"), "0 0 0 0 1 1 1 1",
            "PASS", ("NV18 on all 28 pairs", "GPU 0: NIC11", "GPU 7: NIC4", "NIC0")),
    Machine("b200-8gpu-9nic-4numa", "https://github.com/unslothai/unsloth/issues/3872", "NVIDIA B200", "B200",
            every(8, "NV18"), near(9, ONE_EACH, sockets="00112233", aside="8:0"), "0 0 1 1 2 2 3 3", "PASS", ("NV18 on all 28 pairs",)),
    Machine("dgx-a100-8gpu-10nic", "https://github.com/NVIDIA/DCGM/issues/149", "NVIDIA A100-SXM4-40GB", "A100-SXM",
            every(8, "NV12"), near(10, DGX_A100_NICS, "PXB", sockets="00112233"), "3 3 1 1 7 7 5 5", "PASS", ("NV12 on all 28 pairs", "GPU 1: NIC0 NIC1")),
    Machine("dgx-a100-8gpu-12nic", f"{NCCL}1505", "NVIDIA A100-SXM4-40GB", "A100-SXM", every(8, "NV12"),
            near(12, {0: "0 1", 1: "0 1", 2: "2 3", 3: "2 3", 4: "6 7", 5: "6 7", 6: "8 9", 7: "8 9"}, "PXB", sockets="00112233"),
            "3 3 1 1 7 7 5 5", "PASS", ("NV12 on all 28 pairs", "GPU 4: NIC6 NIC7")),
    Machine("dgx1-v100-8gpu-hybrid-cube", f"{TESTS}29", "Tesla V100-SXM2-16GB", "V100-SXM2", CUBE,
            columns("mlx5_0 mlx5_1", "NODE NODE / NODE NODE / PIX PIX / PIX PIX / SYS SYS / SYS SYS / SYS SYS / SYS SYS"),
            "- - - - - - - -", "PASS", ("6 NVLinks from each", "12 of 28 pairs have none")),
    Machine("dgx2-v100-16gpu-10nic", f"{TESTS}78", "Tesla V100-SXM3-32GB", "V100-SXM3", every(16, "NV6"),
            {f"mlx5_{nic}": [row[nic] for row in rows(
                "PIX PXB NODE NODE SYS SYS SYS SYS SYS SYS / PIX PXB NODE NODE SYS SYS SYS SYS SYS SYS / PXB PIX NODE NODE SYS SYS SYS SYS SYS SYS /"
                "PXB PIX NODE NODE SYS SYS SYS SYS SYS SYS / NODE NODE PIX PXB SYS SYS SYS SYS SYS SYS" + 11 * " / - - - - - - - - - -")]
             for nic in range(10)}, " ".join("-" * 16), "PASS", ("NV6 on all 120 pairs",)),
    Machine("h100-8gpu-2nic-phb", "https://github.com/guevara/read-it-later/issues/11550", "NVIDIA H100 80GB HBM3", "H100-SXM",
            every(8, "NV18"), columns("NIC0 NIC1", "/".join(["SYS SYS"] * 4 + ["NODE NODE"] * 2 + ["PHB PHB", "NODE NODE"])),
            "0 0 0 0 1 1 1 1", "WARN", ("no GPU has an HCA behind its own PCIe switches", "GPUs 0-3")),
    Machine("h100-8gpu-6nic-every-second-gpu", f"{NCCL}1357", "NVIDIA H100 80GB HBM3", "H100-SXM", every(8, "NV18"),
            near(6, {0: "0", 2: "1", 4: "2", 6: "3"}, same="SYS"), "0 0 0 0 1 1 1 1",
            "PASS", ("NV18 on all 28 pairs", "GPU 2: NIC1", "GPUs 1, 3, 5, 7", "over NVLink")),
    Machine("h100-8gpu-6nic-odd-gpus", "https://github.com/IBM/pytorch-communication-benchmarks/issues/1", "NVIDIA H100 80GB HBM3",
            "H100-SXM", every(8, "NV18"), near(6, {1: "0", 3: "3", 5: "4", 7: "5"}, aside="1:0 2:0"),
            "0 0 0 0 1 1 1 1", "PASS", ("GPU 1: NIC0, GPU 3: NIC3, GPU 5: NIC4, GPU 7: NIC5", "NIC1", "NIC2")),
    Machine("h100-8gpu-6nic-two-storage", f"{NCCL}1591", "NVIDIA H100 80GB HBM3", "H100-SXM", every(8, "NV18"),
            near(6, {0: "0", 2: "1", 4: "4", 6: "5"}, aside="2:0 3:0"),
            "0 0 0 0 1 1 1 1", "PASS", ("GPU 0: NIC0, GPU 2: NIC1, GPU 4: NIC4, GPU 6: NIC5", "nobody's: NIC2, NIC3")),
    Machine("h100-nvl-4gpu-one-bridge-down", "https://inference-course-3l0.pages.dev/reference/cluster-findings.html",
            "NVIDIA H100 NVL", "H100-NVL", rows("X NODE SYS SYS / NODE X SYS SYS / SYS SYS X NV12 / SYS SYS NV12 X"), {}, "- - - -",
            "FAIL", ("no NVLink between them", "GPUs 2 and 3 are joined by a bridge"), ("GPU 0 - GPU 1",)),
    Machine("h100-sxm-4gpu-4nic-nv6", f"{NCCL}1617", "NVIDIA H100 80GB HBM3", "H100-SXM", every(4, "NV6"),
            columns(numbered(4), "PIX SYS SYS SYS / SYS PIX SYS SYS / SYS SYS PIX SYS / SYS SYS SYS PIX"), "3 1 7 5",
            "PASS", ("NV6 on all 6 pairs",)),
    Machine("h100-sxm-8gpu-10nic-permuted", f"{NCCL}1264", "NVIDIA H100 80GB HBM3", "H100-SXM", every(8, "NV18"),
            near(10, {0: "0", 1: "1", 2: "2", 3: "5", 4: "6", 5: "7", 6: "8", 7: "9"}, same="SYS"), "0 0 0 0 1 1 1 1",
            "PASS", ("GPU 2: NIC2, GPU 3: NIC5", "nobody's: NIC3, NIC4")),
    Machine("h100-vm-8gpu-9nic-reversed-rails", f"{NCCL}1453", "NVIDIA H100 80GB HBM3", "H100-SXM", every(8, "NV18"),
            near(9, {gpu: str(8 - gpu) for gpu in range(8)}), "0 0 0 0 1 1 1 1", "PASS", ("GPU 0: NIC8", "GPU 7: NIC1", "nobody's: NIC0")),
    Machine("l20-8gpu-pcie", f"{NCCL}1817", "NVIDIA L20", None,
            [["X" if a == b else "PIX" if a // 2 == b // 2 else "NODE" if a // 4 == b // 4 else "SYS" for b in range(8)] for a in range(8)],
            {}, "0 0 0 0 1 1 1 1", "PASS", ("none joined by NVLink", "no profile exists for NVIDIA L20")),
    Machine("l40s-4gpu-2nic", "https://github.com/warpem/miss-alignment/issues/106", "NVIDIA L40S", "no NVLink",
            blocks(4, 2, "NODE"), columns("mlx5_0 mlx5_1", "SYS SYS / SYS SYS / NODE NODE / NODE NODE"), "0 0 1 1",
            "WARN", ("no HCA on the CPU socket of GPUs 0, 1",)),
    Machine("mixed-5gpu", "https://github.com/noonghunna/club-3090/issues/46", None, None,
            rows("X SYS SYS SYS SYS / SYS X PHB NODE NODE / SYS PHB X NODE NODE / SYS NODE NODE X PHB / SYS NODE NODE PHB X"),
            {}, "1 0 0 0 0", "PASS", ("none joined by NVLink",)),
    Machine("nv18-8gpu-12nic-dgx-h100-like", "https://github.com/vllm-project/vllm/issues/6732", None, None, every(8, "NV18"),
            near(12, {0: "0", 1: "3", 2: "4", 3: "5", 4: "6", 5: "9", 6: "10", 7: "11"}, "PXB", aside="1:0 2:0 7:1 8:1"), "0 0 0 0 1 1 1 1",
            "PASS", ("NV18 on all 28 pairs", "no profile exists", "nobody's: NIC1, NIC2, NIC7, NIC8")),
    Machine("nv18-8gpu-9nic-uneven-numa", "https://github.com/sgl-project/sglang/issues/13973", None, None, every(8, "NV18"),
            near(9, {0: "0", 1: "1", 2: "2", 3: "4", 4: "5", 5: "6", 6: "7", 7: "8"}, sockets="00012223", aside="3:1"), "0 0 0 1 2 2 2 3",
            "PASS", ("NV18 on all 28 pairs", "nobody's: NIC3")),
    Machine("p4-1gpu-numa-na", "https://github.com/Project-HAMi/HAMi/pull/99", "Tesla P4", None, [["X"]], {}, "-", "PASS", ("one GPU",)),
    Machine("pcie-4gpu-pxb-pix", f"{NCCL}667", None, None, rows("X PXB SYS SYS / PXB X SYS SYS / SYS SYS X PIX / SYS SYS PIX X"), {},
            "0 0 1 1", "FAIL", ("hang", "go through host memory", "ACS"), ("GPU 0 - GPU 1", "GPU 2 - GPU 3")),
    Machine("pcie-6gpu-2nic-nic-order", f"{NCCL}243", None, None,
            rows("X PIX NODE SYS SYS SYS / PIX X NODE SYS SYS SYS / NODE NODE X SYS SYS SYS /"
                 "SYS SYS SYS X PIX NODE / SYS SYS SYS PIX X NODE / SYS SYS SYS NODE NODE X"),
            columns("mlx5_1 mlx5_0", "SYS NODE / SYS NODE / SYS PIX / NODE SYS / NODE SYS / PIX SYS"), "0 0 0 1 1 1",
            "PASS", ("GPU 2: mlx5_0, GPU 5: mlx5_1",)),
    Machine("pcie-8gpu-phb", f"{NCCL}1439", None, None,
            [["X" if a == b else "PIX" if a // 2 == b // 2 else "PHB" if a // 4 == b // 4 else "SYS" for b in range(8)] for a in range(8)],
            {}, "0 0 0 0 1 1 1 1", "PASS", ("none joined by NVLink",)),
    Machine("rtx4090-6gpu", f"{NCCL}814", "NVIDIA GeForce RTX 4090", None,
            rows("X PHB SYS SYS SYS SYS / PHB X SYS SYS SYS SYS / SYS SYS X SYS SYS SYS / SYS SYS SYS X PHB SYS / SYS SYS SYS PHB X SYS / SYS SYS SYS SYS SYS X"),
            {}, "- - - - - -", "WARN", ("slower than by way of host memory",), p2p="ok"),
    Machine("t4-4gpu", f"{NCCL}428", "Tesla T4", "no NVLink", rows("X SYS SYS SYS / SYS X NODE NODE / SYS NODE X NODE / SYS NODE NODE X"), {},
            "- - - -", "PASS", ("without NVLink",)),
)  # fmt: skip

BY_NAME = {machine.name: machine for machine in MACHINES}


def node_of(machine: Machine, **changes: object) -> Node:
    """The machine as a node that a text told: names of GPUs are those that were given beside it."""
    numa = [None if place == "-" else int(place) for place in machine.numa.split()]
    gpus = tuple(
        Gpu(
            index=index,
            name=machine.product,
            numa_node=numa[index],
            nics={nic: relation(told[index]) for nic, told in machine.nics.items() if told[index] != "-"},
            peers=tuple(peer(other, label, machine.p2p) for other, label in enumerate(row) if other != index),
        )
        for index, row in enumerate(machine.pairs)
    )
    hcas = tuple(Hca(name=name) for name in machine.nics)
    return msgspec.structs.replace(Node(name="node0", source="topo", gpus=gpus, hcas=hcas), **changes)


def peer(index: int, label: str, p2p: str | None = None) -> GpuPeer:
    """What a cell says."""
    links = int(label[2:]) if label.startswith("NV") else 0
    told = {"read": p2p, "write": p2p} if p2p else {}
    return GpuPeer(index=index, num_nvlinks=links, ancestor=None if links else relation(label), p2p=told)


def relation(label: str) -> Ancestor:
    return label


def profiles_of(machine: Machine) -> dict[str, Profile]:
    """As Evidence.profiles wants them."""
    if machine.profile is None or machine.product is None:
        return {}
    return {machine.product.casefold(): PROFILES[machine.profile]}
