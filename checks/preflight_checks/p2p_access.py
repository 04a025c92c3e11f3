"""The driver lets GPUs of a node access each other's memory where they would use it.

Pairs that NVLink joins need it. Over PCIe NCCL goes by way of host memory where it is missing: slower, and normal between CPU sockets
(https://github.com/NVIDIA/nccl/issues/257) and on GeForce cards, whose driver says that the GPU doesn't support it (https://github.com/noonghunna/club-3090/issues/1140).
Where the driver does allow it on a GeForce card over PCIe, it may be slower than host memory: 9.9 against 22 GB/s on RTX 4090
(https://github.com/NVIDIA/nccl/issues/814). One GPU unlike all others is to blame; a registry key that switches peer access off is a setting.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from preflight.model import Check, Evidence, Finding, Gpu, Node, Part, Record, Verdict
from preflight.model.gpu import P2pStatus
from preflight.model.gpu_users import users_of
from preflight.model.per_gpu import gpu_name, gpu_part

NAME = "p2p_access"

# nvml.h, nvmlGpuP2PStatus_t, with the letters of `nvidia-smi topo -p2p`; worst first
WORDS: dict[P2pStatus, str] = {
    "disabled": "switched off by a registry key (DR)",
    "gpu": "not supported by this GPU (GNS)",
    "chipset": "not supported by the chipset (CNS)",
    "topology": "not supported by the topology (TNS)",
    "not supported": "not supported (NS)",
    "unknown": "status unknown (U)",
    "ok": "ok",
}
SLOWER = "NCCL goes by way of host memory"
EXPECTED = "peer access over NVLink, and over PCIe below one CPU socket"


class _Pair(Record, frozen=True):
    """Two GPUs, what the driver says of access between them (None: nothing), and what that means. `text`: why, in words that several pairs can share."""

    a: Gpu
    b: Gpu
    status: P2pStatus | None
    verdict: Verdict
    text: str

    @property
    def name(self) -> str:
        return f"{self.a.index}-{self.b.index}"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node: what is missing, or one PASS. Nothing for nodes with fewer than two GPUs, and for texts that don't tell it."""
    assert evidence.inventory is not None
    if evidence.settings.cpu_declared:
        return
    for node in evidence.inventory.nodes:
        gpus = node.open_gpus if node.tells_health else node.gpus or ()
        pairs = [_pair(a, b) for a, b in combinations([gpu for gpu in gpus if not gpu.mig_enabled], 2)]
        if any(pair.status is not None for pair in pairs):
            yield from _judge_node(evidence, node, pairs)
        elif pairs and node.tells_health:
            yield _untold(node, [pair.a for pair in pairs])


def _pair(a: Gpu, b: Gpu) -> _Pair:
    ends = [peer for peer in (a.peer(b.index), b.peer(a.index)) if peer is not None]
    told = {status for peer in ends for kind, status in peer.p2p.items() if kind in ("read", "write")}
    status = next((word for word in WORDS if word in told), None)
    joined = any(peer.num_nvlinks for peer in ends)
    far = any(peer.ancestor == "SYS" for peer in ends)
    return _Pair(a, b, status, *_meaning(status, joined=joined, far=far, consumer=_is_consumer(a) and _is_consumer(b)))


def _meaning(status: P2pStatus | None, *, joined: bool, far: bool, consumer: bool) -> tuple[Verdict, str]:
    if status is None or status == "unknown":
        return Verdict.UNKNOWN, "not told" if status is None else WORDS[status]
    if status == "ok":
        slow = consumer and not joined
        text = "ok over PCIe on a GeForce card: it may be slower than by way of host memory"
        return (Verdict.WARN, text) if slow else (Verdict.PASS, WORDS[status])
    if joined:
        return Verdict.FAIL, f"{WORDS[status]}, though NVLink joins them"
    usual = _usual(status, far=far, consumer=consumer)
    return Verdict.PASS if usual else Verdict.WARN, f"{WORDS[status]}{usual}: {SLOWER}"


def _usual(status: P2pStatus, *, far: bool, consumer: bool) -> str:
    """Where a refusal over PCIe is normal; empty where it isn't."""
    if far and status in ("chipset", "topology", "not supported"):
        return ", as usual between CPU sockets"
    return ", as usual for GeForce cards" if consumer and status in ("gpu", "not supported") else ""


def _is_consumer(gpu: Gpu) -> bool:
    return gpu.name is not None and ("GEFORCE" in gpu.name.upper() or "TITAN" in gpu.name.upper())


def _untold(node: Node, gpus: Sequence[Gpu]) -> Finding:
    missing = [gpu.why_unknown("peers") for gpu in gpus]
    if all(why.kind == "unsupported" for why in missing):
        return Finding(check=NAME, subject=node.name, verdict=Verdict.SKIP, observed=missing[0].text)
    words = ["the driver tells nothing of it" if why.kind == "not told" else why.text for why in missing]
    text = "; ".join(dict.fromkeys(words))
    observed = f"peer access of every pair unknown: {text}"
    return Finding(check=NAME, subject=node.name, verdict=Verdict.UNKNOWN, observed=observed, expected=EXPECTED)


def _judge_node(evidence: Evidence, node: Node, pairs: Sequence[_Pair]) -> Iterator[Finding]:
    out = _odd_one(pairs)
    if out is not None:
        mine = [pair for pair in pairs if out in (pair.a, pair.b)]
        yield _odd_finding(evidence, node, out, mine)
        pairs = [pair for pair in pairs if pair not in mine]
    bad = [pair for pair in pairs if pair.verdict in (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)]
    for verdict, text in dict.fromkeys((pair.verdict, pair.text) for pair in bad):
        yield _pairs_finding(evidence, node, [pair for pair in bad if (pair.verdict, pair.text) == (verdict, text)])
    if not bad:
        counts = {text: sum(pair.text == text for pair in pairs) for text in dict.fromkeys(pair.text for pair in pairs)}
        observed = "; ".join(f"{number} pair{'s' * (number != 1)}: {text}" for text, number in counts.items())
        yield Finding(check=NAME, subject=node.name, verdict=Verdict.PASS, observed=observed, expected=EXPECTED)


def _odd_one(pairs: Sequence[_Pair]) -> Gpu | None:
    """The only GPU whose pairs are all refused, where all others, two or more, reach each other."""
    good = {gpu.index for pair in pairs if pair.status == "ok" for gpu in (pair.a, pair.b)}
    gpus = {gpu.index: gpu for pair in pairs for gpu in (pair.a, pair.b)}
    out = [gpu for index, gpu in gpus.items() if index not in good]
    mine = [pair for pair in pairs if out and out[0] in (pair.a, pair.b)]
    if len(out) != 1 or not all(pair.status not in (None, "unknown", "ok") for pair in mine):
        return None
    alike = all(pair.status == "ok" for pair in pairs if pair not in mine)
    return out[0] if alike and len({gpu.name for gpu in gpus.values()}) == 1 else None


def _odd_finding(evidence: Evidence, node: Node, gpu: Gpu, mine: Sequence[_Pair]) -> Finding:
    worst = min((pair.verdict for pair in mine), key=lambda verdict: verdict.rank)
    users = users_of(evidence.plan, node, [gpu])
    statuses = ", ".join(dict.fromkeys(WORDS[pair.status] for pair in mine if pair.status))
    return Finding(
        check=NAME,
        subject=gpu_name(node, gpu),
        verdict=Verdict.WARN if worst is Verdict.PASS else users.lowered(worst),
        observed=f"peer access {statuses} with each of {len(mine)} others, which reach each other{users.text()}",
        expected=EXPECTED,
        remedy=f"compare GPU {gpu.index} with the others (`nvidia-smi -q -i {gpu.index}`: MIG, virtualisation, fabric), reset it, or keep groups off it",
        blames=gpu_part(node, gpu, "likely"),
    )


def _pairs_finding(evidence: Evidence, node: Node, pairs: Sequence[_Pair]) -> Finding:
    first = pairs[0]
    named = ", ".join(pair.name for pair in pairs[:8]) + (", ..." if len(pairs) > 8 else "")
    verdict, blames, remedy = first.verdict, None, ""
    if first.status == "disabled":
        blames = Part(kind="environment", name=f"driver registry keys of {node.name}")
        remedy = "look for NVreg_RegistryDwords in the driver's module parameters (/etc/modprobe.d, /proc/driver/nvidia/params), and take the key out"
    elif verdict is Verdict.FAIL:
        gpus = {gpu.index: gpu for pair in pairs for gpu in (pair.a, pair.b)}
        users = users_of(evidence.plan, node, list(gpus.values()), together=True)
        verdict = users.lowered(verdict)
        remedy = (
            "look at the fabric registration, MIG mode and virtualisation of these GPUs, and keep groups off the pairs"
        )
        if len(pairs) == 1:
            blames = Part(
                kind="link", name=f"{node.name} GPU {first.a.index} - GPU {first.b.index}", confidence="likely"
            )
    elif verdict is Verdict.WARN:
        remedy = (
            "measure the pair with and without NCCL_P2P_DISABLE=1"
            if first.status == "ok"
            else "expect less bandwidth, or place groups elsewhere"
        )
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=verdict,
        observed=f"GPU pair{'s' * (len(pairs) != 1)} {named}: peer access {first.text}",
        expected=EXPECTED,
        remedy=remedy,
        blames=blames,
    )


CHECK = Check(
    name=NAME,
    claim="The driver lets GPUs of a node access each other's memory where they would use it.",
    why="Without peer access data takes the way through host memory: on NVLink many times slower, and collectives may fail.",
    source="Status codes: nvml.h. What is normal: NVIDIA/nccl issues 257 and 814, noonghunna/club-3090 issue 1140.",
    remedy="Take out a registry key that switches it off; look at MIG, virtualisation and fabric registration of a GPU unlike the others.",
    uses=("inventory",),
    judge=judge,
)
