"""Several files of one job as one plan: what each is, what it says, and a refusal where two disagree."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from preflight.errors import ConfigError
from preflight.formats import parse_json, read_bytes, read_toml, read_yaml, readable
from preflight.plan.importers.facts import Fact, Facts, Imported, short
from preflight.plan.importers.megatron_model import NO_VOCABULARY
from preflight.plan.importers.resolve import resolve
from preflight.plan.importers.tree import Lines, leaves

SECTIONS = ("model", "parallel", "training", "hardware", "launch")
MAX_FILES = 32
NOT_GIVEN = "that file was not given"  # a note, and a remedy where something is missing
_OF_ANY_LAUNCHER = ("launch.hosts", "launch.master", "launch.topology")
_PATHS = ("launch.hostfile", "launch.topology")

_KINDS = (
    "a log with Megatron-LM's argument block, a job script (sbatch or shell), run_config.yaml of Megatron-Bridge or NeMo, torchtitan's JSON or TOML,"
    " DeepSpeed's JSON or hostfile, MPI's rankfile, accelerate's or nanotron's YAML, a Kubernetes manifest, a model's config.json, a plan file"
)


def import_files(paths: Sequence[str | Path], told: Mapping[str, Fact] | None = None) -> Imported:
    """What the files say together, as the content of a plan file with the origin of each value. Nothing in them is executed.

    `told`: "section.key" -> what goes before any file, as the command line does. Where nothing says anything of the layout, not even the framework, there is
    no section [parallel].

    Raises ConfigError: a file that can't be read or is of no known kind, a value that is none, two files (or two places of one) that
    give different values, numbers that contradict one another (world size against nodes x GPUs, batch sizes against dp).
    """
    if not paths or len(paths) > MAX_FILES:
        raise ConfigError("--from", f"{len(paths)} files", remedy=f"give 1 to {MAX_FILES}: {_KINDS}")
    facts = Facts()
    scripts = _scripts(paths)
    inner = _inner(scripts)
    for path in paths:
        name = readable(str(path))
        if name not in inner:
            others = {other: text for other, text in scripts.items() if other in inner and other != name}
            facts.add(read_file(path, others))
    _overrule(facts, told or {})
    resolve(facts)
    given = {Path(path).name for path in paths}
    document: dict[str, dict[str, Any]] = {}
    origins = {}
    for section in SECTIONS:
        for key, fact in facts.values.items():
            if key.startswith(f"{section}."):
                document.setdefault(section, {})[key.removeprefix(f"{section}.")] = fact.value
                origins[key] = fact.origin
    for key, fact in facts.values.items():
        if key.startswith("wants.") and key.removeprefix("wants.") not in given:
            facts.note(f"{fact.origin}: {NOT_GIVEN}: give it too if it has a say")
    known = "model.vocab_size" in facts.values
    return Imported(document, origins, tuple(note for note in facts.notes if not (known and NO_VOCABULARY in note)))


def _overrule(facts: Facts, told: Mapping[str, Fact]) -> None:
    """What is told goes before what was read; with another launcher, what files say of their own one's ways goes."""
    launcher = told.get("launch.launcher")
    if launcher and launcher.value != facts.get("launch.launcher"):
        for key in [key for key in facts.values if key.startswith("launch.") and key not in _OF_ANY_LAUNCHER]:
            del facts.values[key]
    facts.values.update(told)


def _scripts(paths: Sequence[str | Path]) -> dict[str, str]:
    """The files that may be scripts which belong together, by name; empty if there is only one file."""
    from preflight.plan.importers.script import MAX_BYTES

    found = {}
    for path in paths:
        if len(paths) > 1 and Path(path).suffix.lower() in {"", ".sh", ".bash", ".slurm", ".sbatch", ".env"}:
            data = read_bytes(path)
            if len(data) <= MAX_BYTES and b"\0" not in data:
                found[readable(str(path))] = data.decode("utf-8", "replace")
    return found


def _inner(scripts: Mapping[str, str]) -> set[str]:
    """Those that another one of them runs or sources: they are read there, with its variables. None if that leaves nobody to begin with."""
    found = {
        name
        for name in scripts
        for other, text in scripts.items()
        if other != name
        and re.search(
            rf"(?:^|[\s;&|])(?:source|\.|bash|sh)\s+[^\s;]*(?<![\w.-]){re.escape(Path(name).name)}(?![\w.-])", text
        )
    }
    return found if len(found) < len(scripts) else set()


def read_file(path: str | Path, others: Mapping[str, str] | None = None) -> Facts:
    """What one file says, its kind found out from its content. `others`: scripts that it may run or source. Raises ConfigError."""
    from preflight.plan.importers import megatron_log

    name = readable(str(path))
    data = read_bytes(path)
    if megatron_log.is_log(data):
        return megatron_log.read_log(data, name)
    if b"\0" in data[:65536]:
        raise ConfigError(name, "is binary", remedy=f"give {_KINDS}")
    suffix = Path(path).suffix.lower()
    is_yaml = suffix in {".yaml", ".yml"}
    facts = None
    if data[:4096].lstrip().startswith((b"{", b"\xef\xbb\xbf{")):
        facts = _read_document(parse_json(data, name), data, name)
    elif suffix == ".toml":
        facts = _read_document(read_toml(path), data, name)
    elif not is_yaml:
        facts = _read_text(data.decode("utf-8", "replace"), name, path, others)
    if facts is None and (is_yaml or b":" in data[:4096]):
        facts = _read_document(read_yaml(path), data, name)
    if facts is None:
        raise ConfigError(name, "is of no kind that is known here", remedy=f"give {_KINDS}")
    return facts


def _read_text(text: str, name: str, path: str | Path, others: Mapping[str, str] | None) -> Facts | None:
    """A list of hosts or a script; None if it is neither."""
    from preflight.plan.importers import hosts, script

    if hosts.is_hostfile(text):
        return hosts.read_hostfile(text, name, str(Path(path).absolute()))
    if hosts.is_rankfile(text):
        return hosts.read_rankfile(text, name, str(Path(path).absolute()))
    return script.read_script(text, name, others) if script.is_script(text) else None


def _read_document(document: Any, data: bytes, name: str) -> Facts | None:
    """A nested document, whatever it was written in; None if it is of no known kind."""
    from preflight.plan.importers import accelerate, bridge, deepspeed, huggingface, kubernetes, nanotron, torchtitan

    if not isinstance(document, dict):
        return None
    kinds = (
        (kubernetes.is_kubernetes, kubernetes.read_kubernetes),
        (torchtitan.is_torchtitan, torchtitan.read_torchtitan),
        (nanotron.is_nanotron, nanotron.read_nanotron),
        (accelerate.is_accelerate, accelerate.read_accelerate),
        (deepspeed.is_deepspeed, deepspeed.read_deepspeed),
        (huggingface.is_huggingface, huggingface.read_shape),
        (bridge.is_bridge, bridge.read_bridge),
        (_is_plan, _read_plan),
    )
    reader = next((reader for is_one, reader in kinds if is_one(document)), None)
    return reader(document, Lines(data.decode("utf-8", "replace"), name)) if reader else None


def _is_plan(document: dict[str, Any]) -> bool:
    """A whole one, or one that says only what other files leave out: [hardware] alone, say."""
    tables = all(isinstance(section, dict) for section in document.values())
    return "parallel" in document or (bool(document) and tables and set(document) <= {*SECTIONS, "rules"})


def _read_plan(document: dict[str, Any], lines: Lines) -> Facts:
    """A plan file: its own keys, checked when the plan is read."""
    facts = Facts()
    for path, value in leaves(document):
        if len(path) == 2 and path[0] in SECTIONS:
            key, given = ".".join(path), value
            if key in _PATHS and isinstance(value, str):
                given = str(
                    Path(lines.name).absolute().parent / value
                )  # relative paths begin at the file that says them
            facts.say(key, given, f"{lines.name}:{lines.of(path)} {path[1]} = {short(value)}")
        else:
            facts.note(f"{lines.origin(path, value)}: is not taken over")
    return facts
