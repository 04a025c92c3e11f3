"""No setting of NCCL switches off what the hardware has, or names what isn't there.

Such settings are left over from debugging, copied from another cluster, or baked into an image; every node looks healthy, and the job is slow or hangs. The fault is the environment's, never
the node's. FAIL only where a setting surely costs or breaks something here; else WARN.

Sources: NCCL user guide, "Environment Variables" (meaning of each; those under "Debugging" are not to be kept in production); NCCL 2.30 (numbers are read by strtoll: a word
is 0; a topology file that isn't there is silently ignored). horovod/horovod 700: "^docker0" replaces the default exclusion, so that `lo` may be chosen. vllm-project/vllm 16992: NCCL_CUMEM_ENABLE=0
switches NVLink between nodes off. Azure/azurehpc-health-checks 142: a missing topology file looked like bad hardware. NVIDIA/nccl 1008: a stale
graph file in /etc/nccl.conf broke jobs on 2 and 3 GPUs. NVIDIA/nccl issue threads show NCCL_P2P_DISABLE as the first thing that
people try and forget.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_interface

from preflight.model import Check, Evidence, Finding, Gpu, Hca, Nic, Node, Part, Record, Setting, Verdict
from preflight.model.nccl_lists import read_list, read_number
from preflight.model.per_gpu import count

NAME = "nccl_settings"
EXPECTED = "no setting that holds the hardware back"
FAIL, WARN = Verdict.FAIL, Verdict.WARN
_CLOSE = {"PIX", "PXB"}  # a NIC that the GPU reaches without crossing a CPU


class _Case(Record, frozen=True):
    """A node, and what its job is like. `together`: the job or this run has more than one node."""

    node: Node
    evidence: Evidence
    together: bool


class _Fault(Record, frozen=True):
    """What is wrong with a setting. `remedy` is for its place."""

    verdict: Verdict
    says: str
    remedy: str = ""


_Rule = Callable[[_Case, Setting], _Fault | None]


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One PASS for each node, or a finding for each setting that is wrong there. Nothing where a run without GPUs is meant."""
    if evidence.settings.cpu_declared:
        return
    together = _spans_nodes(evidence)
    for node in evidence.health or ():
        if node.gpus == () or (node.simulated and node.settings is None):
            continue
        if node.settings is None:
            yield Finding(
                check=NAME,
                subject=node.name,
                verdict=Verdict.UNKNOWN,
                observed="settings unknown: not in this snapshot",
                expected=EXPECTED,
                remedy="run `preflight node` in the environment of the job",
            )
            continue
        yield from _judge_node(_Case(node, evidence, together), node.settings)


def _spans_nodes(evidence: Evidence) -> bool:
    if evidence.plan is not None:
        return len({rank.node for rank in evidence.plan.placement.ranks}) > 1
    return evidence.inventory is not None and len(evidence.inventory.nodes) > 1


def _judge_node(case: _Case, settings: Sequence[Setting]) -> Iterator[Finding]:
    faults = [(setting, fault) for setting in settings for fault in _faults(case, setting)]
    for setting, fault in faults:
        lost = f"; overrides {', '.join(setting.overrides)}" if setting.overrides else ""
        yield Finding(
            check=NAME,
            subject=case.node.name,
            verdict=fault.verdict,
            observed=f"{setting.name}={setting.value} (from {setting.origin}{lost}): {fault.says}",
            expected=EXPECTED,
            remedy=fault.remedy or f"take {setting.name} out of {_place(setting)}, unless it is meant",
            blames=_part(setting) if fault.verdict is FAIL else None,
        )
    if not faults:
        named = [setting.name for setting in settings if setting.name.startswith("NCCL_")]
        observed = f"{len(named)} set, none of them does harm: {', '.join(named[:6])}" if named else "none set"
        observed += " ..." if len(named) > 6 else ""
        yield Finding(check=NAME, subject=case.node.name, verdict=Verdict.PASS, observed=observed, expected=EXPECTED)


def _part(setting: Setting) -> Part:
    return Part(kind="environment", name=f"{setting.name}={setting.value} from {setting.origin}")


def _place(setting: Setting) -> str:
    return "the job's environment" if setting.origin == "environment" else setting.origin


def _faults(case: _Case, setting: Setting) -> Iterator[_Fault]:
    rule = _RULES.get(setting.name)
    found = rule(case, setting) if rule and setting.value else None
    for fault in (_odd_name(setting), _no_number(setting), _bad_file(case, setting), found):
        if fault is not None:
            yield fault


def _odd_name(setting: Setting) -> _Fault | None:
    if " " not in setting.name and "\t" not in setting.name:
        return None
    remedy = f"write NAME=VALUE in {setting.origin}, without `export` and without blanks around the equals sign"
    return _Fault(WARN, f"has no effect: NCCL takes {setting.name!r} for the name", remedy)


def _no_number(setting: Setting) -> _Fault | None:
    if setting.name in _SWITCHES and setting.value and read_number(setting.value) == 0 and "0" not in setting.value:
        return _Fault(WARN, "counts as 0: NCCL reads a number here", f"write {setting.name}=1 or =0")
    return None


def _bad_file(case: _Case, setting: Setting) -> _Fault | None:
    problem = setting.file_problem
    if problem is None:
        return None
    platform = case.node.platform
    virtual = platform is not None and platform.virtual_machine not in {None, "none"}
    if setting.name == "NCCL_TOPO_FILE":
        fails = problem.startswith("is of another machine") or virtual
        says = f"the file {problem}; NCCL then ignores it, and takes what a virtual machine shows for the truth"
        if not virtual:
            says = f"the file {problem}" + ("" if fails else "; NCCL silently does without")
        return _Fault(
            FAIL if fails else WARN, says, f"put the topology of this machine type at {setting.value}, or unset it"
        )
    if setting.name == "NCCL_GRAPH_FILE":
        return _Fault(FAIL, f"the file {problem}; NCCL can't start then", f"provide {setting.value}, or unset it")
    return _Fault(WARN, f"the file {problem}; NCCL then goes on without it", f"provide {setting.value}, or unset it")


def _on(setting: Setting) -> bool:
    return bool(read_number(setting.value))


def _joined(node: Node) -> list[Gpu]:
    """The GPUs that reach another of the node over NVLink."""
    return [
        gpu
        for gpu in node.open_gpus
        if any(peer.num_nvlinks for peer in gpu.peers)
        or any(link.active for link in gpu.links or ())
        or gpu.nvlink_domain not in {None, "none"}
    ]


def _no_p2p(case: _Case, setting: Setting) -> _Fault | None:
    level = setting.value.strip().upper()
    off = _on(setting) if setting.name == "NCCL_P2P_DISABLE" else level in {"LOC", "0"}
    if not off or len(case.node.open_gpus) < 2:
        return None
    joined = _joined(case.node)
    if len(joined) > 1:
        return _Fault(
            FAIL, f"switches NVLink off, and {count(joined)} are joined by it: traffic goes through host memory"
        )
    return _Fault(WARN, "switches direct access between GPUs off: traffic goes through host memory")


def _no_shm(case: _Case, setting: Setting) -> _Fault | None:
    gpus = case.node.open_gpus
    domains = {gpu.nvlink_domain for gpu in gpus}
    if not _on(setting) or len(gpus) < 2 or (len(domains) == 1 and not domains & {None, "none"}):
        return None
    return _Fault(WARN, "GPUs without direct access to each other talk through the network card instead of host memory")


def _fast_hcas(node: Node, *, with_efa: bool) -> list[Hca]:
    """HCAs that carry training traffic: a port is up, and it is InfiniBand, EFA, or close to a GPU. What only carries the system's own traffic isn't."""
    near = {name for gpu in node.gpus or () for name, closeness in gpu.nics.items() if closeness in _CLOSE}
    return [
        hca
        for hca in node.hcas or ()
        if (with_efa or hca.driver != "efa")
        and any(
            port.up and (port.link_layer == "InfiniBand" or hca.driver == "efa" or hca.name in near)
            for port in hca.ports or ()
        )
    ]


def _no_ib(case: _Case, setting: Setting) -> _Fault | None:
    plugin = case.node.setting("NCCL_NET")
    own = plugin is not None and plugin.value.casefold() not in {"", "ib", "socket"}
    if not _on(setting) or own:
        return None
    return _sockets_only(case, _fast_hcas(case.node, with_efa=False))


def _net(case: _Case, setting: Setting) -> _Fault | None:
    name = setting.value.casefold()
    if name == "socket":
        return _sockets_only(case, _fast_hcas(case.node, with_efa=True))
    if name == "ib" and case.node.hcas == ():
        return _Fault(FAIL, "asks for InfiniBand or RoCE, and the node has no such card: NCCL can't start")
    return None


def _sockets_only(case: _Case, hcas: Sequence[Hca]) -> _Fault | None:
    if not hcas:
        return None
    names = ", ".join(hca.name for hca in hcas[:4]) + (" ..." if len(hcas) > 4 else "")
    says = f"traffic between nodes goes through TCP sockets, beside {len(hcas)} usable HCA{'s' * (len(hcas) != 1)} ({names})"
    return _Fault(FAIL if case.together else WARN, says)


def _between_nodes_off(case: _Case, setting: Setting) -> _Fault | None:
    if read_number(setting.value) != 0 or not _in_rack(case):
        return None
    says = "switches NVLink between nodes off, which this machine has"
    return _Fault(FAIL if case.together else WARN, says)


def _in_rack(case: _Case) -> bool:
    """By the profile; where it doesn't say, by a fabric that has a name."""
    fabrics = [
        (gpu, profile.fabric if profile else None)
        for gpu in case.node.open_gpus
        for profile in [case.evidence.profile_of(gpu)]
    ]
    return any(
        kind == "rack" if kind is not None else gpu.fabric is not None and gpu.fabric.cluster_uuid is not None
        for gpu, kind in fabrics
    )


def _no_nvls(case: _Case, setting: Setting) -> _Fault | None:
    fabrics = {profile.fabric for gpu in case.node.open_gpus if (profile := case.evidence.profile_of(gpu))}
    if read_number(setting.value) != 0 or not fabrics & {"node", "rack"}:
        return None
    return _Fault(WARN, "switches the reductions inside the NVSwitches off (NVLink SHARP)")


def _no_gpu_direct(case: _Case, setting: Setting) -> _Fault | None:
    hcas = _fast_hcas(case.node, with_efa=True)
    if not hcas or setting.value.strip().upper() not in {"LOC", "0"}:
        return None
    return _Fault(WARN, "HCAs don't reach GPU memory directly: every message is copied through host memory")


def _interfaces(case: _Case, setting: Setting) -> _Fault | None:
    nics = case.node.nics
    if nics is None:
        return None
    exact_only = setting.name == "GLOO_SOCKET_IFNAME"  # gloo knows names only
    wanted = read_list(f"={setting.value}" if exact_only else setting.value)
    used = [nic for nic in nics if wanted.takes(nic.name)]
    others = [nic for nic in nics if nic.kind != "loopback"]
    good = [nic for nic in others if nic.up is not False and not _is_of_this_node_only(nic)]
    here, better = ", ".join(nic.name for nic in others), ", ".join(nic.name for nic in good or others)
    if not used:
        return _Fault(FAIL, f"names no interface that is here ({here}): nothing can be set up", f"name one of {better}")
    if any(nic.kind == "loopback" for nic in used) and len(nics) > 1:
        remedy = f"write {setting.name}={setting.value},lo, or leave it out: lo and docker are left out by default"
        says = "leaves the loopback interface in, which other nodes can't reach"
        return _Fault(FAIL if case.together else WARN, says, remedy if wanted.excludes else f"name one of {better}")
    if all(map(_is_of_this_node_only, used)):
        says = "names only interfaces with link-local addresses, which other nodes can't reach"
        return _Fault(FAIL if case.together else WARN, says, f"name one of {better} that other nodes can reach")
    if all(nic.up is False for nic in used):
        return _Fault(FAIL if case.together else WARN, "names only interfaces that are down", f"name one of {better}")
    return None


def _is_of_this_node_only(nic: Nic) -> bool:
    """Whether its IPv4 addresses, or those of IPv6 where it has no others, are all link-local. A node's own services are reached so (aws-samples/aws-do-eks 54)."""
    known = []
    for text in nic.addresses:
        with contextlib.suppress(ValueError):
            known.append(ip_interface(text).ip)
    old = [address for address in known if address.version == 4]
    return bool(known) and all(address.is_link_local for address in old or known)


def _hcas(case: _Case, setting: Setting) -> _Fault | None:
    hcas = [hca for hca in case.node.hcas or () if hca.driver != "efa"]
    wanted = read_list(setting.value, ports=True)
    if not wanted.tokens:
        return None
    if case.node.hcas == () and not wanted.excludes:
        remedy = "see why no HCA is here (in a container: whether /dev/infiniband and its devices were given to it), or take the setting out"
        return _Fault(WARN, "names HCAs, and this node shows none: traffic goes through sockets", remedy)
    if not hcas:
        return None
    ports = [(hca, port) for hca in hcas for port in hca.ports or () if wanted.takes(hca.name, port.number)]
    names = ", ".join(hca.name for hca in hcas[:10]) + (" ..." if len(hcas) > 10 else "")
    bad = FAIL if case.together else WARN
    if not ports and all(hca.ports is not None for hca in hcas):
        return _Fault(bad, f"matches no HCA ({names}): traffic goes through sockets", f"name some of {names}")
    if ports and all(port.up is False for _, port in ports):
        return _Fault(bad, "names only ports that are down: traffic goes through sockets", f"name some of {names}")
    taken = {hca.name for hca, port in ports if port.up is not False}
    return _missed_rails(case, taken) or _longer_names(hcas, setting, taken)


def _missed_rails(case: _Case, taken: set[str]) -> _Fault | None:
    """GPUs whose own HCAs are left out while others' are used: what is next to no GPU (storage) may be left out."""
    usable = {hca.name for hca in _fast_hcas(case.node, with_efa=False)}
    missed = []
    for gpu in case.node.open_gpus:
        own = {name for name, closeness in gpu.nics.items() if closeness in _CLOSE} & usable
        if own and not own & taken:
            missed.append(gpu)
    if not missed:
        return None
    indices = ", ".join(str(gpu.index) for gpu in missed)
    return _Fault(
        WARN, f"leaves out the HCAs next to GPU {indices}: their traffic takes another GPU's rail or crosses a CPU"
    )


def _longer_names(hcas: Sequence[Hca], setting: Setting, taken: set[str]) -> _Fault | None:
    wanted = read_list(setting.value, ports=True)
    known = {hca.name for hca in hcas}
    listed = {token for token, _ in wanted.tokens}
    more = sorted(name for name in taken - listed if any(name.startswith(token) for token in listed & known))
    if wanted.exact or wanted.excludes or not more:
        return None
    remedy = f'write {setting.name}={"="}{setting.value}: with "=" in front names are exact'
    return _Fault(WARN, f"names are prefixes, so that {', '.join(more)} is used too", remedy)


def _forced(_: _Case, setting: Setting) -> _Fault | None:
    return _Fault(WARN, f"forces {setting.value} on every collective and size, where NCCL would choose")


def _graph(_: _Case, setting: Setting) -> _Fault | None:
    if setting.file_problem is not None:
        return None
    return _Fault(WARN, "fixes the paths for one set of GPUs: jobs on other or fewer GPUs may fail")


def _few_channels(_: _Case, setting: Setting) -> _Fault | None:
    number = read_number(setting.value)
    return _Fault(WARN, "so few channels can't fill NVLink") if number is not None and 0 < number <= 2 else None


def _debugging(_: _Case, setting: Setting) -> _Fault | None:
    if setting.name == "NCCL_DEBUG":
        return _Fault(WARN, "writes every call to the log") if setting.value.upper() == "TRACE" else None
    return _Fault(WARN, "is for debugging, and slows every call") if _on(setting) else None


_SWITCHES = frozenset(
    {
        *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_CUMEM_ENABLE", "NCCL_MNNVL_ENABLE"),
        *("NCCL_NVLS_ENABLE", "NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE", "NCCL_PXN_DISABLE", "NCCL_CROSS_NIC"),
    }
)
_RULES: dict[str, _Rule] = {
    "NCCL_P2P_DISABLE": _no_p2p,
    "NCCL_P2P_LEVEL": _no_p2p,
    "NCCL_SHM_DISABLE": _no_shm,
    "NCCL_IB_DISABLE": _no_ib,
    "NCCL_NET": _net,
    "NCCL_CUMEM_ENABLE": _between_nodes_off,
    "NCCL_MNNVL_ENABLE": _between_nodes_off,
    "NCCL_NVLS_ENABLE": _no_nvls,
    "NCCL_NET_GDR_LEVEL": _no_gpu_direct,
    "NCCL_IB_CUDA_SUPPORT": _no_gpu_direct,
    "NCCL_SOCKET_IFNAME": _interfaces,
    "GLOO_SOCKET_IFNAME": _interfaces,
    "NCCL_IB_HCA": _hcas,
    "NCCL_GRAPH_FILE": _graph,
    "NCCL_ALGO": _forced,
    "NCCL_PROTO": _forced,
    "NCCL_MAX_NCHANNELS": _few_channels,
    "NCCL_MAX_CTAS": _few_channels,
    "NCCL_DEBUG": _debugging,
    "NCCL_CHECK_POINTERS": _debugging,
    "CUDA_LAUNCH_BLOCKING": _debugging,
}

CHECK = Check(
    name=NAME,
    claim="No setting of NCCL switches off what the hardware has, or names what isn't there.",
    why="A forgotten variable or a line in /etc/nccl.conf makes a healthy machine slow, or lets the job hang; the node is not to blame.",
    uses=("health",),
    judge=judge,
    source="NCCL user guide, Environment Variables; horovod/horovod 700; vllm-project/vllm 16992; Azure/azurehpc-health-checks 142.",
    remedy="Take the setting out of the place that the finding names, or correct what it names.",
    need="advisory",
)
