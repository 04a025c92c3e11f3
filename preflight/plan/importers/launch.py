"""How a command starts the ranks: srun, torchrun, deepspeed, mpirun and accelerate, and what #SBATCH lines ask for."""

import re
from collections.abc import Mapping, Sequence

from preflight.plan.importers.accelerate import read_accelerate
from preflight.plan.importers.commands import Invocation, parse
from preflight.plan.importers.facts import Fact, Facts, Options, short
from preflight.plan.importers.tree import Lines


def options_of(words: Sequence[str], line: int, name: str, program: str) -> Options:
    """The options of one launcher."""
    found, unknown = parse(words, one_letter=program == "srun", most=1)
    said = {
        key: Fact(value, f"{name}:{line} {program} --{key.replace('_', '-')} {short(value)}")
        for key, value in found.items()
    }
    return Options(said, f"{name}:{line} default of {program}", unknown)


def read_launch(invocation: Invocation, line: int, name: str, asked: Mapping[str, Fact], facts: Facts) -> None:
    """Says nodes, GPUs per node and how ranks are spread. `asked`: options of #SBATCH lines, which those of srun override."""
    given = {program: options_of(words, line, name, program) for program, words in invocation.launchers}
    slurm = Options(
        {**asked, **(given["srun"].said if "srun" in given else {})},
        "",
        given["srun"].unknown if "srun" in given else (),
    )
    other = next((program for program in ("torchrun", "accelerate", "deepspeed", "mpirun") if program in given), None)
    nodes, gpus, tasks = _read_slurm(slurm, facts, other)
    if "torchrun" in given:
        _read_torchrun(given["torchrun"], facts, nodes, gpus, tasks)
    elif "accelerate" in given:
        _read_accelerate(given["accelerate"], facts, nodes)
    elif "deepspeed" in given:
        _read_deepspeed(given["deepspeed"], facts, nodes, gpus)
    elif "mpirun" in given:
        _read_mpirun(given["mpirun"], facts, nodes, gpus)
    elif "srun" in given:
        facts.say("launch.launcher", "slurm", f"{name}:{line} srun")
        facts.take("hardware.nodes", nodes)
        _read_ranks_of_slurm(slurm, facts, nodes, gpus, tasks)
    else:
        facts.take("hardware.nodes", nodes)
        facts.take("hardware.gpus_per_node", gpus)


def _read_slurm(slurm: Options, facts: Facts, other: str | None) -> tuple[Fact | None, Fact | None, Fact | None]:
    """(nodes, GPUs per node, tasks per node); what else Slurm is asked for is said at once. `other`: the launcher that numbers the ranks in Slurm's place."""
    asked = slurm.raw("nodes")
    span = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", str(asked.value)) if asked else None
    nodes = asked._replace(value=int(span[1])) if asked and span and span[2] in {None, span[1]} else None
    if asked and nodes is None:
        facts.note(f"{asked.origin}: is no fixed number of nodes")
    distribution = slurm.word("distribution")
    if distribution and other:
        facts.note(f"{distribution.origin}: has no say: {other} numbers the ranks")
    elif distribution:
        facts.say("launch.distribution", distribution.value.split(",")[0].split(":")[0], distribution.origin)
    facts.take("launch.segment", slurm.number("segment"))
    hosts = slurm.raw("nodelist")
    if hosts and len(str(hosts.value)) <= 200 and "/" not in str(hosts.value):
        facts.take("launch.hosts", hosts)
    for key in ("gpus_per_node", "gres", "gpus_per_task"):
        fact = slurm.raw(key)
        numbers = (
            re.findall(r"(?:^|,)(?:gpu:)?(?:[A-Za-z][\w.\-]*:)?(\d{1,4})(?:\([^)]*\))?(?=,|$)", str(fact.value))
            if fact
            else []
        )
        if fact and numbers and (key != "gres" or "gpu" in str(fact.value)) and key != "gpus_per_task":
            return nodes, fact._replace(value=int(numbers[0])), slurm.number("ntasks_per_node")
    total = slurm.raw("gpus")
    number = re.fullmatch(r"(?:[A-Za-z][\w.\-]*:)?(\d{1,9})", str(total.value)) if total else None
    if total and number and nodes and nodes.value and int(number[1]) % nodes.value == 0:
        return nodes, total._replace(value=int(number[1]) // nodes.value), slurm.number("ntasks_per_node")
    return nodes, None, slurm.number("ntasks_per_node")


def _read_ranks_of_slurm(
    slurm: Options, facts: Facts, nodes: Fact | None, gpus: Fact | None, tasks: Fact | None
) -> None:
    """One rank per task: tasks per node, or all tasks over the nodes; GPUs per node only where neither is said."""
    total = slurm.number("ntasks")
    if tasks:
        facts.take("hardware.gpus_per_node", tasks)
        if gpus and gpus.value != tasks.value:
            facts.note(f"{tasks.origin}, and {gpus.origin}: the plan has one rank per task")
    elif total and nodes and nodes.value > 0 and total.value % nodes.value == 0:
        facts.say("hardware.gpus_per_node", total.value // nodes.value, total.origin)
    elif gpus:
        facts.note(f"{gpus.origin}: tasks per node are not said; one task per GPU is assumed")
        facts.say("hardware.gpus_per_node", gpus.value, gpus.origin, default=True)
    if total:
        facts.take("said.world_size", total)


def _read_torchrun(options: Options, facts: Facts, nodes: Fact | None, gpus: Fact | None, tasks: Fact | None) -> None:
    standalone = options.on("standalone")
    facts.say("launch.launcher", "torchrun", options.absent.replace("default of ", ""))
    backend = options.word("rdzv_backend", default="c10d" if standalone else "static")
    if backend and backend.value in {"c10d", "static"}:
        facts.take("launch.rendezvous", backend)
    elif backend:
        facts.note(f"{backend.origin}: only c10d and static are known; ranks are then not predicted")
    _read_nodes_of_torchrun(options, facts, nodes)
    _read_workers_of_torchrun(options, facts, gpus)
    if tasks and tasks.value > 1:
        facts.note(f"{tasks.origin}: torchrun is started more than once on each node")
    _read_master(options.raw("master_addr"), facts)
    endpoint = options.raw("rdzv_endpoint")
    if endpoint and backend and backend.value == "static":
        _read_master(endpoint._replace(value=str(endpoint.value).rsplit(":", 1)[0]), facts)


def _read_nodes_of_torchrun(options: Options, facts: Facts, nodes: Fact | None) -> None:
    """--nnodes 4 or 4:4; 1 if it is not given, whatever Slurm starts."""
    count = options.raw("nnodes")
    span = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", str(count.value)) if count else None
    if count and span and span[2] in {None, span[1]}:
        facts.say("hardware.nodes", int(span[1]), count.origin)
    elif count:
        facts.note(f"{count.origin}: is no fixed number of nodes")
    elif "nnodes" not in options.unknown:
        facts.take("hardware.nodes", options.default(1, "nnodes"))
        if nodes and nodes.value > 1:
            facts.note(f"{nodes.origin}: torchrun without --nnodes makes a world of its own on every node")
        return
    facts.take("hardware.nodes", nodes)


def _read_workers_of_torchrun(options: Options, facts: Facts, gpus: Fact | None) -> None:
    """--nproc-per-node 8; as many as there are GPUs with "gpu" or "auto"; 1 if it is not given."""
    workers = options.raw("nproc_per_node")
    if workers and str(workers.value).isdigit():
        number = options.number("nproc_per_node")
        facts.take("hardware.gpus_per_node", number)
        if gpus and number and gpus.value != number.value:
            facts.note(f"{workers.origin}, and {gpus.origin}: the plan has one rank per worker")
    elif workers or "nproc_per_node" in options.unknown:
        facts.take("hardware.gpus_per_node", gpus)
    else:
        facts.take("hardware.gpus_per_node", options.default(1, "nproc_per_node"))


def _read_master(fact: Fact | None, facts: Facts) -> None:
    if fact and re.fullmatch(r"[A-Za-z][\w.\-]{0,199}", str(fact.value)) and fact.value != "localhost":
        facts.take("launch.master", fact)


def _read_accelerate(options: Options, facts: Facts, nodes: Fact | None) -> None:
    facts.say("launch.launcher", "torchrun", f"{options.absent}: it starts workers as torchrun does")
    machines, processes = options.number("num_machines"), options.number("num_processes")
    facts.take("hardware.nodes", machines or nodes)
    facts.take("said.world_size", processes)
    backend = options.word("rdzv_backend", default="static")
    if backend and backend.value in {"static", "c10d"}:
        facts.take("launch.rendezvous", backend)
    file = options.raw("config_file")
    if file:
        facts.say("wants." + str(file.value).rsplit("/", 1)[-1], True, file.origin)
    _read_master(options.raw("main_process_ip"), facts)
    _read_accelerate_flags(options, facts)


def _read_accelerate_flags(options: Options, facts: Facts) -> None:
    """What accelerate's configuration file says can be said on its command line too."""
    kind = "DEEPSPEED" if options.on("use_deepspeed") else "FSDP" if options.on("use_fsdp") else None
    fsdp = {name: fact.value for name, fact in options.said.items() if name.startswith("fsdp_")}
    names = ("zero_stage", "gradient_accumulation_steps", "offload_optimizer_device", "deepspeed_config_file")
    deepspeed = {name: options.said[name].value for name in names if name in options.said}
    document: dict[str, object] = {"distributed_type": kind, "fsdp_config": fsdp, "deepspeed_config": deepspeed}
    if "mixed_precision" in options.said:
        document["mixed_precision"] = options.said["mixed_precision"].value
    name, _, line = options.absent.rsplit(" default of ", 1)[0].rpartition(":")
    found = read_accelerate(document, Lines("", name, int(line)))
    for key, fact in found.values.items():
        if not fact.default:
            facts.say(key, fact.value, fact.origin)


def _read_deepspeed(options: Options, facts: Facts, nodes: Fact | None, gpus: Fact | None) -> None:
    facts.say("launch.launcher", "deepspeed", options.absent.replace("default of ", ""))
    facts.take("hardware.nodes", options.number("num_nodes") or nodes)
    facts.take("hardware.gpus_per_node", options.number("num_gpus") or gpus)
    hostfile = options.raw("hostfile", "H")
    if hostfile:
        facts.say("wants." + str(hostfile.value).rsplit("/", 1)[-1], True, hostfile.origin)
    for name in ("include", "exclude"):
        fact = options.raw(name, name[0])
        if fact:
            facts.note(f"{fact.origin}: chooses among the hosts, which is not followed here")
    _read_master(options.raw("master_addr"), facts)


def _read_mpirun(options: Options, facts: Facts, nodes: Fact | None, gpus: Fact | None) -> None:
    facts.say("launch.launcher", "mpi", options.absent.replace("default of ", ""))
    total, each = options.number("np", "n"), options.number("npernode", "ppn", "ntasks_per_node", "N")
    facts.take("said.world_size", total)
    facts.take("hardware.nodes", nodes)
    facts.take("hardware.gpus_per_node", each or gpus)
    mapped = options.word("map_by")
    if mapped and mapped.value.split(":")[0] in {"node", "slot", "ppr"}:
        word = "by-node" if mapped.value.startswith("node") else "by-slot"
        facts.say("launch.distribution", word, mapped.origin)
    for name in ("bynode", "byslot"):
        if options.on(name):
            facts.say("launch.distribution", f"by-{name[2:]}", options.said[name].origin)
    file = options.raw("rankfile", "rf", "hostfile", "machinefile")
    if file:
        facts.say("wants." + str(file.value).rsplit("/", 1)[-1], True, file.origin)
