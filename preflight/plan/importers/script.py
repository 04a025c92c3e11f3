"""Job scripts: sbatch or shell, with Megatron-LM's options, an inline DeepSpeed JSON, and the line that starts the ranks."""

import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from preflight.errors import ConfigError
from preflight.formats import parse_json
from preflight.plan.importers.accelerate import read_sizes
from preflight.plan.importers.commands import Invocation, parse, take_apart
from preflight.plan.importers.deepspeed import is_deepspeed, read_deepspeed
from preflight.plan.importers.facts import Fact, Facts, Options, short
from preflight.plan.importers.launch import read_launch
from preflight.plan.importers.megatron import read_megatron
from preflight.plan.importers.megatron_names import ALIASES, FLAGS, KNOWN
from preflight.plan.importers.overrides import read_overrides
from preflight.plan.importers.shell import Script
from preflight.plan.importers.shell_expand import marks, shown
from preflight.plan.importers.trainer import read_trainer
from preflight.plan.importers.tree import Lines

MAX_OPTIONS = 50_000  # whose places are remembered
MAX_BYTES, MAX_LINE = 2**20, 100_000  # the largest job script that we know has 60 KiB

_SBATCH = re.compile(r"^[ \t]*#SBATCH[ \t]+(\S.*)$", re.MULTILINE)
_SHORT = {"N": "nodes", "n": "ntasks", "w": "nodelist", "m": "distribution", "G": "gpus", "x": "exclude"}
_OPTION = re.compile(r"(?<![\w-])--?([A-Za-z][\w-]{0,99})")
_LAUNCHING = {"torchrun", "deepspeed", "accelerate", "mpirun"}


class _Places:
    """Where the options of scripts are written, in place of the command that they end up in. `texts`: file name -> text, the main one first."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.main = next(iter(texts))
        self.found: dict[str, list[tuple[str, str]]] = {}
        for name, text in texts.items():
            line, before = 1, 0
            for match in itertools.islice(_OPTION.finditer(text), MAX_OPTIONS):
                line += text.count("\n", before, match.start())
                before = match.start()
                begin = text.rfind("\n", 0, before) + 1
                places = self.found.setdefault(match[1].replace("-", "_"), [])
                if len(places) < 20 and not text[begin : begin + 200].lstrip().startswith("#"):
                    rest = text[match.end() : match.end() + 200].split("\n", 1)[0].lstrip(" \t=")
                    places.append((f"{name}:{line}", rest))

    def origin(self, option: str, value: object, line: int) -> str:
        """The origin "file:line --option value". `line`: of the command, for an option that is not written out."""
        said = f"--{option.replace('_', '-')}{'' if value is True else ' ' + short(value)}"
        places = self.found.get(option)
        if not places:
            return f"{self.main}:{line} {said}"
        first = str(value).split(" ", 1)[0]
        place, rest = next((at for at in places if value is not True and first in at[1]), places[0])
        through = re.match(r"\$\(\(.{1,80}?\)\)|\$\{[^}]{1,80}\}|\$\w{1,80}", rest)
        return f"{place} {said}" + (f" ({through[0]})" if through and value is not True else "")


def is_script(text: str) -> bool:
    """Whether a text is a shell script that starts something, or a list of exported variables."""
    if text.startswith("#!") and re.match(r"#!.*\b(ba|z|da|k)?sh\b", text[:200]):
        return True
    return (
        re.search(
            r"^[ \t]*(#SBATCH |srun |torchrun |deepspeed |mpirun |accelerate launch |(export )?PARALLELISM_CONFIG_\w+=)",
            text,
            re.MULTILINE,
        )
        is not None
    )


def read_script(text: str, name: str, others: Mapping[str, str] | None = None) -> Facts:
    """What a script says. `others`: file name -> text of further scripts, read in place where this one runs or sources them.

    Raises ConfigError for a script that is no script, or that has two trainings which differ.
    """
    others = others or {}
    if len(text) > MAX_BYTES or max(map(len, text.split("\n"))) > MAX_LINE:
        raise ConfigError(
            name, f"is too large for a job script ({MAX_BYTES // 1024} KiB, lines of {MAX_LINE} characters)"
        )
    facts = Facts()
    text = text.replace("\0", "")
    asked = sbatch_options(text, name)
    beside = {PurePath(other).name: content.replace("\0", "") for other, content in others.items()}
    script = Script(text, name, _environment(asked), beside)
    for note in script.notes:
        facts.note(note if note.startswith(name) else f"{name} {note}")
    once = {run.words: run for run in reversed(script.runs)}  # a command that stands there twice says nothing new
    runs = [(take_apart(run.words), run.line) for run in sorted(once.values(), key=lambda run: run.line)]
    trainings = _trainings(runs)
    for words in once:
        for shell, other in itertools.pairwise(words):
            if shell.rsplit("/", 1)[-1] in {"bash", "sh"} and re.search(r"\.(sh|slurm|sbatch)$", other):
                facts.note(
                    f"{name}: runs {shown(other)}, whose options are not seen: give the log of the job, or that script"
                )
    if not trainings:
        facts.note(f"{name}: no command in it starts a training that is known here")
        read_launch(Invocation((), "", ()), 1, name, asked, facts)
    places = _Places({name: text, **others})
    for run in trainings:
        read_launch(*run, name, asked, facts)
        _read_arguments(run, places, name, script, facts)
    _read_variables(script, name, facts)
    return facts


def sbatch_options(text: str, name: str) -> dict[str, Fact]:
    """What #SBATCH lines ask for; a later line goes before an earlier one."""
    asked: dict[str, Fact] = {}
    for match in _SBATCH.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        words = re.sub(r"(^|\s)#.*", "", match[1]).split()
        found, _ = parse(words, one_letter=True, most=1)
        for key, value in found.items():
            asked[_SHORT.get(key, key)] = Fact(value, f"{name}:{line} #SBATCH --{key.replace('_', '-')} {short(value)}")
    return asked


def _environment(asked: dict[str, Fact]) -> dict[str, str]:
    """The variables that Slurm sets from what was asked for."""
    nodes, tasks = asked.get("nodes"), asked.get("ntasks_per_node")
    gpus = asked.get("gpus_per_node") or asked.get("gres")
    found: dict[str, str] = {}
    if nodes and str(nodes.value).isdigit():
        found |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes.value))
    if tasks and str(tasks.value).isdigit():
        found["SLURM_NTASKS_PER_NODE"] = str(tasks.value)
    if "SLURM_NNODES" in found and "SLURM_NTASKS_PER_NODE" in found:
        found |= dict.fromkeys(
            ("SLURM_NTASKS", "SLURM_NPROCS"),
            str(int(str(nodes and nodes.value)[:9]) * int(str(tasks and tasks.value)[:9])),
        )
    number = re.search(r"(\d{1,4})$", str(gpus.value)) if gpus else None
    if number:
        found |= dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), number[1])
    return found


def _trainings(runs: Iterable[tuple[Invocation, int]]) -> list[tuple[Invocation, int]]:
    """The commands that start a training: those with options of Megatron-LM; else those under a launcher of ranks; else programs under srun."""
    runs = list(runs)

    def known(invocation: Invocation) -> int:
        return len(KNOWN & set(parse(invocation.arguments)[0] | dict.fromkeys(parse(invocation.arguments)[1])))

    return (
        [run for run in runs if known(run[0]) >= 3]
        or [run for run in runs if any(program in _LAUNCHING for program, _ in run[0].launchers)]
        or [run for run in runs if run[0].program and run[0].launchers]
    )


def _read_arguments(run: tuple[Invocation, int], places: _Places, name: str, script: Script, facts: Facts) -> None:
    """The options of the program itself."""
    invocation, line = run
    found, unknown = parse(invocation.arguments)
    said = {ALIASES.get(key, key): Fact(value, places.origin(key, value, line)) for key, value in found.items()}
    unknown = {ALIASES.get(key, key) for key in unknown}
    for key in sorted(unknown & (KNOWN | {"world_size", "num_experts", "vocab_size"})):
        facts.note(f"{name}:{line} --{key.replace('_', '-')}: its value is not in the file")
    for variable in _loose(invocation.arguments):
        may = {option for text in script.candidates.get(variable[1:], ()) for option in parse(text.split())[0]}
        unknown |= {ALIASES.get(option, option) for option in may} - set(said)
        more = f", perhaps {', '.join('--' + option.replace('_', '-') for option in sorted(may)[:8])}" if may else ""
        facts.note(f"{name}:{line}: {variable} may add options{more}: its value is not in the file")
    if len(KNOWN & (set(said) | unknown)) >= 3:
        read_megatron(Options(said, f"{name}:{line} default of Megatron-LM", unknown), facts, name)
    else:
        read_trainer(Options(said, "", unknown), facts)
    facts.add(read_overrides(invocation.arguments, name, line))
    options = Options(said, "", unknown)
    for key in ("deepspeed_config", "deepspeed", "config_file", "job.config_file", "config", "fsdp_config"):
        fact = options.raw(key)
        if fact and re.search(r"\.(json|ya?ml|toml)$", str(fact.value)):
            _read_named(str(fact.value), fact.origin, script, name, facts)


def _loose(arguments: tuple[str, ...]) -> list[str]:
    """Variables of unknown value that stand where an option could begin."""
    found = [
        source
        for before, word in zip(("", *arguments), arguments, strict=False)
        if word.startswith("\0") and (not before.startswith("-") or before.lstrip("-").replace("-", "_") in FLAGS)
        for source in marks(word)
    ]
    return sorted(set(found))[:20]


def _read_named(path: str, origin: str, script: Script, name: str, facts: Facts) -> None:
    """A file that the training reads: the one that the script itself writes, else one to ask for."""
    document = script.documents.get(path)
    if document is None:
        facts.say("wants." + PurePath(path).name, True, origin)
        return
    where = f"{name}:{document.line} {PurePath(path).name}"
    if marks(document.text):
        facts.note(f"{where}: holds values that are not in the file: {', '.join(marks(document.text)[:8])}")
    try:
        content = parse_json(re.sub(r"\0[^\0]*\0", "null", document.text).encode(), where)
    except ConfigError as error:
        facts.note(str(error))
        return
    if isinstance(content, dict) and is_deepspeed(content):
        facts.add(read_deepspeed(content, Lines(document.text, name, document.line + 1)))


def _read_variables(script: Script, name: str, facts: Facts) -> None:
    """Variables of the environment that decide something themselves."""
    sizes = {}
    for key, value in script.variables.values.items():
        if not isinstance(value, str) or marks(value):
            continue
        origin = f"{name}:{script.lines.get(key, 1)} {key}={short(value)}"
        if key.startswith("PARALLELISM_CONFIG_") and key.endswith("_SIZE"):
            sizes[key] = Fact(value, origin)
        elif key == "CUDA_VISIBLE_DEVICES" and re.fullmatch(r"[\w,\-/ ]{1,200}", value):
            facts.say("launch.visible_devices", value, origin)
        elif (
            key == "MASTER_ADDR"
            and key in script.lines
            and re.fullmatch(r"[A-Za-z][\w.\-]{0,199}", value)
            and value != "localhost"
        ):
            facts.say("launch.master", value, origin, default=True)
        elif key == "SLURM_HOSTFILE" and value:
            facts.say("launch.hostfile", value, origin)
    if sizes:
        read_sizes(sizes, facts)
