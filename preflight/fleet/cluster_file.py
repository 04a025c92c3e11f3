"""Reads a file that describes a modelled cluster: TOML, strict as plan files are. deploy/clusters/README.md says what the keys mean; a test holds the two together."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from preflight.errors import ConfigError
from preflight.fleet.planted import FAULT_KEYS, hosts_of, read_faults
from preflight.formats import read_toml, readable
from preflight.model import Profile
from preflight.model.expectation import NVLS_SHARE
from preflight.model.found_links import GENERATION
from preflight.model.hostlist import unfold
from preflight.model.link_rates import HOST_COPY_X16, NIC_SHARE, nvlink_each
from preflight.plan.layout import MAX_WORLD_SIZE
from preflight.plan.profiles import Product, product_named
from preflight.plan.refusals import read_value, refuse_unknown
from preflight.plan.values import Reader, count, decimal, flag, from_zero, rate, show, text, whole, wholes
from preflight.probe.simulate import Cluster
from preflight.registry import profile_folders

MAX_NODES = 16_384
_RATE, _SHARE = rate(10**15), decimal(0, 0.95)
SECTIONS: dict[str, dict[str, Reader]] = {
    "cluster": {
        "nodes": whole(MAX_NODES),
        "hosts": text,
        "gpus_per_node": whole(64),
        "gpu": text,
        "leaves": whole(MAX_NODES),
        "leaf_sizes": wholes(MAX_NODES),
        "leaves_told": flag,
        "wrong_leaves": from_zero(MAX_NODES),
        "rails": flag,
        "oversubscription": decimal(0.01, 1000),
        "nodes_per_nvlink_domain": whole(1024),
        "gpus_per_nic": whole(64),
        "nic_bandwidth": _RATE,
        "nvlink_bandwidth": _RATE,
        "nvls_share": decimal(0, 1),
        "host_to_device_bandwidth": _RATE,
        "device_to_host_bandwidth": _RATE,
        "matmul_flops": count(10**18),
        "other_leaf_loss": _SHARE,
        "unlike_slot_loss": _SHARE,
    },
    "noise": {
        "variation": decimal(0, 0.5),
        "transient_rate": decimal(0, 1),
        "transient_depth": _SHARE,
        "tail_rate": decimal(0, 1),
        "tail_depth": _SHARE,
        "collision_rate": decimal(0, 1),
        "collision_depth": _SHARE,
    },
}
CLASS_KEYS: dict[str, Reader] = {"fact": text, "value": text, "hosts": text}
# the key of a file -> the field of a Cluster, where the names differ
FIELDS = {
    "nic_bandwidth": "nic_bytes_per_s",
    "nvlink_bandwidth": "nvlink_bytes_per_s",
    "host_to_device_bandwidth": "host_to_device_bytes_per_s",
    "device_to_host_bandwidth": "device_to_host_bytes_per_s",
    "matmul_flops": "matmul_flops_per_s",
    "variation": "noise",
}
RATES = {key for key in FIELDS if key != "variation"}  # whole numbers in a file, decimals in the model
LAID_OUT = {"nodes", "hosts", "gpu", "leaves", "leaf_sizes", "wrong_leaves", "nodes_per_nvlink_domain"}


def read_cluster(path: str | Path) -> Cluster:
    """The cluster that a file describes. Raises ConfigError with file, key, value and what was expected."""
    return cluster_of(read_toml(path), readable(str(path)))


def cluster_of(document: Mapping[str, Any], source: str) -> Cluster:
    """The cluster that the content of such a file describes. `source`: for messages. Raises ConfigError."""
    refuse_unknown(source, None, document, [*SECTIONS, "classes", "faults"], "section")
    given = _section(source, document, "cluster")
    nodes = _nodes(source, given)
    sizes = _leaf_sizes(source, given, len(nodes))
    width = len(str(len(sizes) - 1))
    leaves = tuple(f"leaf{number:0{width}}" for number, size in enumerate(sizes) for _ in range(size))
    per_node = given.get("gpus_per_node", 8)
    if len(nodes) * per_node > MAX_WORLD_SIZE:
        problem = f"{len(nodes)} nodes with {per_node} GPUs are more than {MAX_WORLD_SIZE} GPUs"
        raise ConfigError(source, problem, key="cluster.gpus_per_node")
    product = _product(source, given.get("gpu", "H100-80GB"))
    fields: dict[str, Any] = _usual(product.profile)
    fields |= {key: value for key, value in given.items() if key not in LAID_OUT}
    fields |= _section(source, document, "noise")
    fields |= {key: float(fields[key]) for key in RATES & fields.keys()}
    base = Cluster(
        nodes=nodes,
        leaves=leaves,
        told_leaves=_wrong(leaves, given.get("wrong_leaves", 0)),
        domains=_domains(source, given, nodes),
        product=product.name,
        classes=_classes(source, document, nodes),
        **{FIELDS.get(key, key): value for key, value in fields.items()},
    )
    return read_faults(source, _tables(source, document, "faults", FAULT_KEYS), base)


def _product(source: str, name: str) -> Product:
    try:
        return product_named(name, profile_folders())
    except ConfigError as error:
        raise ConfigError(source, error.problem, key="cluster.gpu", remedy=error.remedy) from None


def _section(source: str, document: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(source, f"{show(section)} is not a section", key=name, remedy=f"begin it with [{name}]")
    refuse_unknown(source, name, section, SECTIONS[name], "key")
    return {key: read_value(source, f"{name}.{key}", SECTIONS[name][key], value) for key, value in section.items()}


def _tables(
    source: str, document: Mapping[str, Any], name: str, readers: Mapping[str, Reader]
) -> list[tuple[str, dict[str, Any]]]:
    """The entries of [[name]], each with its place for messages."""
    listed = document.get(name, [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ConfigError(
            source, f"{show(listed)} is not a list of tables", key=name, remedy=f"begin each with [[{name}]]"
        )
    entries = []
    for number, entry in enumerate(listed):
        place = f"{name}[{number}]"
        refuse_unknown(source, place, entry, readers, "key")
        entries.append(
            (place, {key: read_value(source, f"{place}.{key}", readers[key], value) for key, value in entry.items()})
        )
    return entries


def _nodes(source: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """By name if the file gives names, else n0, n1, ... with as many digits as are needed."""
    if ("nodes" in given) == ("hosts" in given):
        problem = "give one of nodes and hosts" if "nodes" in given else "is missing"
        raise ConfigError(source, problem, key="cluster.nodes", remedy='write nodes = 16 or hosts = "n[01-16]"')
    if "nodes" in given:
        number = given["nodes"]
        return tuple(f"n{index:0{len(str(number - 1))}}" for index in range(number))
    try:
        hosts = tuple(unfold(given["hosts"]))
    except ValueError as error:
        raise ConfigError(source, str(error), key="cluster.hosts", remedy='write it as in "n[01-08]"') from error
    if len(hosts) > MAX_NODES or len(set(hosts)) < len(hosts):
        problem = "a name stands there twice" if len(hosts) <= MAX_NODES else f"more than {MAX_NODES} nodes"
        raise ConfigError(source, problem, key="cluster.hosts")
    return hosts


def _leaf_sizes(source: str, given: Mapping[str, Any], nodes: int) -> tuple[int, ...]:
    """Nodes of each leaf. `leaves` says how many there are, as even as can be; nothing said: one."""
    if "leaf_sizes" in given:
        sizes: tuple[int, ...] = given["leaf_sizes"]
        if "leaves" in given or sum(sizes) != nodes:
            problem = "give one of leaves and leaf_sizes" if "leaves" in given else f"{sum(sizes)} nodes, not {nodes}"
            raise ConfigError(source, problem, key="cluster.leaf_sizes", remedy="write how many nodes each leaf has")
        return sizes
    leaves = given.get("leaves", 1)
    if leaves > nodes:
        raise ConfigError(source, f"{leaves} leaves for {nodes} nodes: one would be empty", key="cluster.leaves")
    each, rest = divmod(nodes, leaves)
    return tuple(each + (number < rest) for number in range(leaves))


def _domains(source: str, given: Mapping[str, Any], nodes: Sequence[str]) -> tuple[str, ...] | None:
    per_domain = given.get("nodes_per_nvlink_domain", 1)
    if per_domain == 1:
        return None
    if len(nodes) % per_domain:
        key = "cluster.nodes_per_nvlink_domain"
        raise ConfigError(source, f"{len(nodes)} nodes don't divide by {per_domain}", key=key)
    return tuple(f"domain{number // per_domain}" for number in range(len(nodes)))


def _wrong(leaves: tuple[str, ...], number: int) -> tuple[str | None, ...] | None:
    """The map with so many nodes on another leaf than they are, always the same ones; None: it is right."""
    names = sorted(set(leaves))
    if not number or len(names) < 2:
        return None
    chance = random.Random(0)
    told: list[str | None] = list(leaves)
    for place in chance.sample(range(len(leaves)), min(number, len(leaves))):
        told[place] = chance.choice([name for name in names if name != leaves[place]])
    return tuple(told)


def _classes(source: str, document: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, tuple[str | None, ...]]:
    """Software facts: [[classes]] gives a fact its value on some hosts, later entries over earlier ones."""
    found: dict[str, dict[str, str]] = {}
    for place, entry in _tables(source, document, "classes", CLASS_KEYS):
        for key in ("fact", "value"):
            if key not in entry:
                raise ConfigError(
                    source, "is missing", key=f"{place}.{key}", remedy='as in fact = "driver", value = "570.86.15"'
                )
        hosts = hosts_of(source, f"{place}.hosts", entry["hosts"], nodes) if "hosts" in entry else nodes
        found.setdefault(entry["fact"], {}).update(dict.fromkeys(hosts, entry["value"]))
    return {fact: tuple(values.get(node) for node in nodes) for fact, values in found.items()}


def _usual(profile: Profile | None) -> dict[str, Any]:
    """What the GPU's profile says of rates, as far as it does: what transfers reach, by NCCL's constants and published copies."""
    usual: dict[str, Any] = {}
    if profile is None:
        return usual
    if profile.nvlink_links and profile.link_bytes_per_s:
        each = nvlink_each(None, profile.link_bytes_per_s.value)
        if each and profile.nvlink_links.value:
            usual["nvlink_bandwidth"] = profile.nvlink_links.value * each
            usual["nvls_share"] = NVLS_SHARE.get(GENERATION.get(each, ""), 0.0)
    if profile.nic_bytes_per_s:
        usual["nic_bandwidth"] = profile.nic_bytes_per_s.value * NIC_SHARE
    if profile.pcie_generation and profile.pcie_generation.value in HOST_COPY_X16:
        width = profile.pcie_width.value if profile.pcie_width else 16
        copy = HOST_COPY_X16[int(profile.pcie_generation.value)] * width / 16
        usual |= {"host_to_device_bandwidth": copy, "device_to_host_bandwidth": copy}
    if "bf16" in profile.matmul_flops:
        usual["matmul_flops"] = profile.matmul_flops["bf16"].value
    elif "bf16" in profile.peak_flops:
        usual["matmul_flops"] = 0.7 * profile.peak_flops["bf16"].value
    return usual
