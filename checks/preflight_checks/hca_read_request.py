"""The HCAs that carry the job's traffic may read in large PCIe requests.

An HCA that fetches GPU memory in requests of 128 or 256 bytes spends its PCIe link on headers. Firmware and BIOS updates reset the value silently, on some nodes and not on others.

Source: PCI Express specification, Device Control register, Max_Read_Request_Size (default 512 bytes); Oracle's dr-hpc and gpud check it; NVIDIA's performance guides for ConnectX set 4096.
"""

from collections import Counter
from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Hca, Node, Part, Verdict
from preflight.model.rails import rails

NAME = "hca_read_request"
LIMITS = {"minimum_bytes": 512.0}  # the specification's default: less was set by someone


def judge(evidence: Evidence) -> Iterator[Finding]:
    """For each node with GPUs: one finding for each HCA below the minimum or unlike most of its peers, or one PASS; UNKNOWN where the value may not be read."""
    minimum = int(evidence.limits(NAME, LIMITS)["minimum_bytes"])
    own = {node.name: _own(node) for node in evidence.health or () if node.gpus and node.hcas}
    values = Counter(hca.max_read_request_bytes for hcas in own.values() for hca in hcas if hca.max_read_request_bytes)
    usual = next((value for value, number in values.items() if 2 * number > sum(values.values())), None)
    expected = f"the same on all, at least {minimum} bytes" + (f"; most have {usual}" if usual else "")
    for name, hcas in own.items():
        known = [hca for hca in hcas if hca.max_read_request_bytes]
        odd = [hca for hca in known if _is_odd(hca, minimum, usual)]
        for hca in odd:
            yield _odd(name, hca, expected)
        if hcas and not known:
            yield Finding(
                check=NAME,
                subject=name,
                verdict=Verdict.UNKNOWN,
                observed="PCI configuration space can't be read (it needs root)",
                expected=expected,
                remedy="run as root",
            )
        elif known and not odd:
            seen = ", ".join(f"{value} bytes" for value in sorted({hca.max_read_request_bytes or 0 for hca in known}))
            observed = f"{len(known)} HCAs: {seen}"
            yield Finding(check=NAME, subject=name, verdict=Verdict.PASS, observed=observed, expected=expected)


def _own(node: Node) -> list[Hca]:
    names = {name for own in rails(node).own.values() for name in own}
    return [hca for hca in node.hcas or () if hca.name in names and not hca.is_virtual_function]


def _is_odd(hca: Hca, minimum: int, usual: int | None) -> bool:
    value = hca.max_read_request_bytes or 0
    return value < minimum or (usual is not None and value < usual)


def _odd(node: str, hca: Hca, expected: str) -> Finding:
    return Finding(
        check=NAME,
        subject=f"{node} {hca.name}",
        verdict=Verdict.WARN,
        observed=f"Max_Read_Request_Size {hca.max_read_request_bytes} bytes",
        expected=expected,
        remedy=f"set it as on the other HCAs (BIOS, or setpci on {hca.pci_bus_id or 'the card'}), then measure again",
        blames=Part(kind="nic", name=f"{node} {hca.name}", confidence="possible"),
    )


CHECK = Check(
    name=NAME,
    claim="The HCAs that carry the job's traffic may read in large PCIe requests.",
    why="Small read requests waste PCIe bandwidth, and updates of firmware reset the value on single nodes.",
    source="PCI Express specification, Device Control register (default 512 bytes); checked by dr-hpc and gpud too",
    remedy="set Max_Read_Request_Size alike on all HCAs, in the BIOS or with setpci",
    uses=("health",),
    judge=judge,
    need="advisory",
    limits=LIMITS,
)
