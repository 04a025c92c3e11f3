"""Kubernetes manifests that start a training: Job, JobSet, PyTorchJob, MPIJob. Pods are taken as nodes; their commands are read as scripts are.

Names of pods follow the controllers' own rules: Kubernetes, batch/v1 Job (indexed: NAME-INDEX), JobSet (SET-JOB-JOBINDEX-PODINDEX), and the
training operator (NAME-master-0, NAME-worker-INDEX).
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from preflight.plan.importers.facts import Fact, Facts, whole
from preflight.plan.importers.script import read_script
from preflight.plan.importers.tree import Lines

_KINDS = {"Job", "JobSet", "PyTorchJob", "MPIJob"}
MAX_PODS, MAX_HOSTS_TEXT = 2**20, 200


class _Pods(NamedTuple):
    """Pods of one template. `number`: how many. `hosts`: their folded names, None where no rule gives them. `path`: where their number stands."""

    number: int
    hosts: str | None
    template: Mapping[str, Any]
    path: tuple[str, ...]


def is_kubernetes(document: Mapping[str, Any]) -> bool:
    """Whether a YAML document is a manifest of a kind that starts a training."""
    return "apiVersion" in document and document.get("kind") in _KINDS and isinstance(document.get("spec"), Mapping)


def read_kubernetes(document: Mapping[str, Any], lines: Lines) -> Facts:
    """What the manifest and the commands in it say. Raises ConfigError for values that are none."""
    facts = Facts()
    groups = [pods for pods in _pods(document, lines) if pods.number > 0]
    gpus = [(pods, _container(pods.template)) for pods in groups]
    working = [(pods, container) for pods, container in gpus if _gpus(container)]
    if not working:
        facts.note(f"{lines.name}: no pod of it asks for GPUs")
        return facts
    for _, container in working:
        count = _gpus(container)
        assert count is not None
        facts.say(
            "hardware.gpus_per_node",
            whole(Fact(count, lines.name), "nvidia.com/gpu"),
            f"{lines.name}:{lines.of(('nvidia.com/gpu',))} nvidia.com/gpu {count}",
        )
    total = sum(pods.number for pods, _ in working)
    origin = f"{lines.origin(working[0][0].path, working[0][0].number)}: pods with GPUs"
    facts.say("hardware.nodes", total, origin)
    hosts = ",".join(pods.hosts or "" for pods, _ in working)
    if all(pods.hosts for pods, _ in working) and len(hosts) <= MAX_HOSTS_TEXT:
        facts.say("launch.hosts", hosts, f"{lines.name} names of its pods", default=True)
    _, container = working[-1]  # workers differ from the master, if at all, in what they wait for
    _read_command(container, lines, facts)
    facts.say("launch.launcher", "kubernetes", f"{lines.name}: a rank per pod index", default=True)
    return facts


def _read_command(container: Mapping[str, Any], lines: Lines, facts: Facts) -> None:
    """The command of a container as a script, with the variables that the manifest gives it."""
    words = [str(word) for key in ("command", "args") for word in _list(container.get(key))[:10_000]]
    given = [(item.get("name"), item.get("value")) for item in _list(container.get("env")) if isinstance(item, Mapping)]
    exports = [
        f"export {name}={shlex.quote(str(value))}"
        for name, value in given
        if str(name).isidentifier() and value is not None
    ]
    text = "\n".join(["#!/bin/bash", *exports, " ".join(map(shlex.quote, words))])
    found = read_script(text, f"{lines.name}({container.get('name', 'container')})")
    for key in ("hardware.nodes", "hardware.gpus_per_node"):
        fact = found.values.get(key)
        if fact and fact.default:
            del found.values[key]  # the operator sets PET_NNODES and PET_NPROC_PER_NODE
    facts.add(found)


def _pods(document: Mapping[str, Any], lines: Lines) -> Iterator[_Pods]:
    """Every group of pods with its number."""
    kind, spec = document["kind"], _map(document["spec"])
    name = str(_map(document.get("metadata")).get("name", "job"))[:60]
    if kind == "Job":
        yield _job_pods(spec, (), name, lines)
    elif kind == "JobSet":
        for job in _list(spec.get("replicatedJobs"))[:1000]:
            inner = _map(_map(_map(job).get("template")).get("spec"))
            replicas = _number(_map(job).get("replicas", 1), lines)
            one = _job_pods(inner, (), f"{name}-{_map(job).get('name', 'job')}-0", lines)
            hosts = (
                f"{name}-{_map(job).get('name', 'job')}-[0-{replicas - 1}]-[0-{one.number - 1}]"
                if replicas > 1
                else one.hosts
            )
            yield one._replace(number=min(one.number * replicas, MAX_PODS), hosts=hosts)
    else:
        key = "pytorchReplicaSpecs" if kind == "PyTorchJob" else "mpiReplicaSpecs"
        for role, part in _map(spec.get(key)).items():
            count = _number(_map(part).get("replicas", 1), lines)
            base = f"{name}-{str(role).lower()}"
            hosts = f"{base}-0" if count == 1 else f"{base}-[0-{count - 1}]"
            yield _Pods(count, hosts, _map(_map(part).get("template")), ("spec", key, str(role), "replicas"))


def _job_pods(spec: Mapping[str, Any], path: tuple[str, ...], name: str, lines: Lines) -> _Pods:
    count = _number(spec.get("completions", spec.get("parallelism", 1)), lines)
    hosts = f"{name}-0" if count == 1 else f"{name}-[0-{count - 1}]"
    return _Pods(
        count, hosts, _map(spec.get("template")), (*path, "completions" if "completions" in spec else "parallelism")
    )


def _number(value: object, lines: Lines) -> int:
    return max(0, min(whole(Fact(value, lines.name), "replicas"), MAX_PODS))


def _container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container with GPUs, else the first."""
    containers = [_map(item) for item in _list(_map(template.get("spec")).get("containers"))[:100]]
    return next((container for container in containers if _gpus(container)), containers[0] if containers else {})


def _gpus(container: Mapping[str, Any]) -> Any:
    resources = _map(container.get("resources"))
    return _map(resources.get("limits")).get("nvidia.com/gpu") or _map(resources.get("requests")).get("nvidia.com/gpu")


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
