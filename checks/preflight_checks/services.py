"""The daemons that the node's NVLink fabric needs are running.

On boards with NVSwitches the fabric manager trains the links and registers the GPUs; without it CUDA programs fail at start or hang. It died unnoticed for 20 days on one site's node. Boards
with NVSwitches of the fourth generation (NVLink 5) need the NVLink subnet manager beside it. In racks whose NVLink joins nodes, the fabric manager runs on the switches, and each node needs
the IMEX daemon to share memory with the others. Sites may start that with each job and end it after: it is missed where a plan spans nodes, and else a WARN.
In a virtual machine the hypervisor may own the switches and run the fabric manager: from inside nobody can tell. In a container processes of the host are hidden. There the GPUs' registration
speaks: completed for all of them, and the manager has done its work.

Sources: NVIDIA, Fabric Manager User Guide, 1.3 (software stack), 1.5 (NVLink Subnet Manager), 6 and 7 (virtualisation); NVIDIA, IMEX Service documentation
("Deployment Models": for the whole domain, or by the launcher for each job; so does the AWS PCS User Guide); NVIDIA/NVSentinel 883 (20 days), NVIDIA/nccl-tests 260 (a virtual machine with 2 of 8 GPUs).
"""

from collections.abc import Iterator

from preflight.model import Check, Evidence, Finding, Node, Part, Record, Verdict

NAME = "services"
MANAGER, SUBNET_MANAGER, IMEX = "nv-fabricmanager", "nvlsm", "nvidia-imex"
_UNITS = {MANAGER: "nvidia-fabricmanager", SUBNET_MANAGER: "nvidia-fabricmanager", IMEX: "nvidia-imex"}  # of systemd


class _Need(Record, frozen=True):
    """A daemon that the node needs, and for what. `proven`: the GPUs' registration shows that it did its work."""

    daemon: str
    purpose: str
    proven: bool = False


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each node that needs a daemon. Nothing for nodes without switched NVLink."""
    if evidence.settings.cpu_declared:
        return
    planned = set(evidence.plan.placement.nodes) if evidence.plan is not None else set()
    for node in evidence.health or ():
        needs = list(_needs(evidence, node)) if node.gpus and not node.simulated else []
        if needs:
            yield _judge_node(node, needs, together=len(planned) > 1 and node.name in planned)


def _needs(evidence: Evidence, node: Node) -> Iterator[_Need]:
    fabrics = {profile.fabric for gpu in node.open_gpus if (profile := evidence.profile_of(gpu))}
    links = [link for gpu in node.open_gpus for link in gpu.links or ()]
    registered = [gpu.fabric for gpu in node.open_gpus]
    proven = bool(registered) and all(
        fabric is not None and fabric.state == "completed" and not fabric.status for fabric in registered
    )
    if "rack" in fabrics:
        yield _Need(IMEX, "memory is shared with the other nodes of the NVLink domain through it")
        return
    unsaid = not fabrics - {None}
    if _without_switches(evidence, node):
        return
    if fabrics & {"manager", "node"} or (unsaid and any(link.peer_kind == "switch" for link in links)):
        yield _Need(MANAGER, "it joins the GPUs through the NVSwitches", proven)
        if any(link.version == "5.0" for link in links):
            yield _Need(SUBNET_MANAGER, "it routes NVLink 5 through the switches", proven)


def _without_switches(evidence: Evidence, node: Node) -> bool:
    """Whether there are none for these GPUs: the driver knows no fabric, every active link leads straight to a GPU, or none is known to lead to a switch and
    boards of so few GPUs are wired directly.
    """
    ends = {link.peer_kind for gpu in node.open_gpus for link in gpu.links or () if link.active}
    if "switch" in ends:
        return False
    if all(gpu.fabric is not None and gpu.fabric.state == "not supported" for gpu in node.open_gpus):
        return True
    profiles = [profile for gpu in node.open_gpus if (profile := evidence.profile_of(gpu))]
    direct = {
        layout.gpus
        for profile in profiles
        for layout in profile.nvlink_layouts or ()
        if layout.kind in ("mesh", "cube")
    }
    return ends == {"gpu"} or len(node.gpus or ()) in direct


def _judge_node(node: Node, needs: list[_Need], *, together: bool) -> Finding:
    running = {service.name: service.running for service in node.services or ()}
    platform = node.platform
    contained = platform is not None and platform.container not in {None, "none"}
    virtual = platform is not None and platform.virtual_machine not in {None, "none"}
    dead = [need for need in needs if running.get(need.daemon) is False and not contained]
    unseen = [need for need in needs if need not in dead and not running.get(need.daemon)]
    expected = " and ".join(need.daemon for need in needs) + " running"
    if dead and not virtual:
        return _dead(node, dead, expected, together=together)
    open_questions = [need for need in (*dead, *unseen) if not need.proven]
    if open_questions:
        why = "the hypervisor may own the switches" if virtual else "processes can't be seen from here"
        return Finding(
            check=NAME,
            subject=node.name,
            verdict=Verdict.UNKNOWN,
            observed=f"{', '.join(need.daemon for need in open_questions)}: {why}",
            expected=expected,
            remedy=f"look on the host: systemctl status {_UNITS[open_questions[0].daemon]}",
        )
    shown = "all GPUs are registered with the fabric" if dead or unseen else "running"
    return Finding(check=NAME, subject=node.name, verdict=Verdict.PASS, observed=shown, expected=expected)


def _dead(node: Node, dead: list[_Need], expected: str, *, together: bool) -> Finding:
    fails = together or any(need.daemon != IMEX for need in dead)
    stale = any(need.proven for need in dead)
    told = "; ".join(f"{need.daemon} is not running: {need.purpose}" for need in dead)
    return Finding(
        check=NAME,
        subject=node.name,
        verdict=Verdict.FAIL if fails else Verdict.WARN,
        observed=told + ("; the GPUs are still registered from before" if stale else ""),
        expected=expected,
        remedy=f"systemctl enable --now {' '.join(dict.fromkeys(_UNITS[need.daemon] for need in dead))} on {node.name};"
        " its version must be the driver's",
        blames=Part(kind="node", name=node.name, confidence="likely" if stale else "certain") if fails else None,
    )


CHECK = Check(
    name=NAME,
    claim="The daemons that the node's NVLink fabric needs are running.",
    why="Without the fabric manager the GPUs of a switched board can't reach each other; without IMEX nodes of a rack can't share memory over NVLink.",
    uses=("health",),
    judge=judge,
    source="NVIDIA, Fabric Manager User Guide and IMEX Service documentation; NVIDIA/NVSentinel 883.",
    remedy="Start the daemon that is named, in the version of the driver, and have the system start it at boot.",
    need="advisory",
)
