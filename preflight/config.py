"""What a site sets for all its nodes: one TOML file, /etc/preflight/preflight.toml unless PREFLIGHT_CONFIG names another. deploy/slurm/README.md says what each key means.

Without the file everything is as the defaults here say, and nothing is enforced. On the prolog path: imports nothing heavy. A file that root would obey and others can write to is refused.
"""

import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from preflight.errors import ConfigError
from preflight.formats import read_toml, readable
from preflight.model.base import Noun
from preflight.model.units import parse_seconds

DEFAULT_PATH = Path("/etc/preflight/preflight.toml")
VARIABLE = "PREFLIGHT_CONFIG"
AGENT_PORT = 9947  # unassigned with IANA, outside the ports that Prometheus exporters use

When = Literal["always", "opt-in", "never"]
Nobody = Literal["hold", "warn"]


class AgentSite(Noun, frozen=True, kw_only=True):
    """The resident agent. `address` None: told by `interface`, or else the node's own address. `users`: who may ask for work beside root and the agent's own user (munge). `munge_socket`: munged's, None: its default.
    `worker_command`: what starts workers, in an environment with the site's torch and NCCL; None: the agent's own Python. `worker_environment`: its variables beside a few of the agent's. `first_port`, `last_port`: of agents that srun starts, and of rendezvous; None: any. `check_every_s`: how often the agent judges its own node for /metrics; 0: never.
    """

    port: int = AGENT_PORT
    address: str | None = None
    interface: str | None = None
    key_file: str | None = None
    users: tuple[str, ...] = ()
    munge_socket: str | None = None
    worker_command: tuple[str, ...] | None = None
    worker_environment: tuple[str, ...] = ()
    worker_user: str | None = None
    first_port: int | None = None
    last_port: int | None = None
    check_every_s: float = 300.0


class SlurmSite(Noun, frozen=True, kw_only=True):
    """What the three Slurm entry points do. `enforce` False: they judge, log and write metrics, and neither drain, fail nor hold. `when`: which jobs they act on ("always": all that don't opt out).

    `budget_s` of the node prolog, `controller_budget_s` of the controller's. `state_dir`: reports, cached verdicts, locks; root's. `textfile_dir`: node_exporter's; None: no metrics file.
    `bin_dir`: where scontrol is; None: looked for. `plans_dir`: plan files that a job may name. `default_plan`: of jobs that name none; None: pairs and whole nodes only.
    `nobody_guilty`: what becomes of a job with a FAIL that no node is guilty of. `requeues`: at most, of one job. `verdict_age_s`: how long a scan's verdict counts. `resume`: `health` may resume nodes that its own local checks drained.
    `rules`: a TOML file whose [rules] change checks in prolog and health program, as `preflight node --rules`.
    """

    enforce: bool = False
    when: When = "always"
    budget_s: float = 8.0
    controller_budget_s: float = 300.0
    health_budget_s: float = 40.0
    state_dir: str = "/var/lib/preflight"
    textfile_dir: str | None = None
    bin_dir: str | None = None
    plans_dir: str = "/etc/preflight/plans"
    default_plan: str | None = None
    topology: str | None = None
    nobody_guilty: Nobody = "warn"
    requeues: int = 2
    verdict_age_s: float = 26 * 3600.0
    resume: bool = False
    rules: str | None = None


class Brake(Noun, frozen=True, kw_only=True):
    """How much may be drained for the same reason: at most `nodes` nodes, and at most `percent` of a partition (of one node at least), within `period_s`. `settle_s`: how long
    one waits at most for others who want to drain at the same moment, then it drains nothing; `jitter_s`: it announces itself up to so much later. `alike`: from so many nodes with the same performance verdict on, all of a job's, it is the environment.
    """

    nodes: int = 3
    percent: float = 5.0
    period_s: float = 3600.0
    settle_s: float = 3.0
    jitter_s: float = 0.5
    alike: int = 4


class ScanSite(Noun, frozen=True, kw_only=True):
    """The sweep of idle nodes. `plan`: what is laid out over each set of nodes; None: pairs only. `nodes_per_job`: at least 2. `history`: the database. `repeats`: sweeps that must agree before a node is drained.

    `sweep_s`: a sweep starts no job that would not end within it. `age_s`: a pair of nodes that was measured longer ago is measured again. `out`: where jobs leave their reports, on a file system that the nodes share;
    None: in the state folder. `command`: preflight as jobs call it; None: as it was called here.
    """

    partition: str | None = None
    plan: str | None = None
    nodes_per_job: int = 4
    max_jobs: int = 4
    budget_s: float = 120.0
    time_limit_s: float = 600.0
    jitter_s: float = 300.0
    qos: str | None = None
    account: str | None = None
    history: str | None = None
    repeats: int = 2
    sweep_s: float = 3600.0
    age_s: float = 7 * 86400.0
    out: str | None = None
    command: tuple[str, ...] | None = None


class HistorySite(Noun, frozen=True, kw_only=True):
    """The history of this machine. `file` None: history.sqlite in the state folder. `keep_days`: what is older is forgotten. `node_results`: whether prologs, the health program and the agent write to it too."""

    file: str | None = None
    keep_days: int = 180
    node_results: bool = True


class Site(Noun, frozen=True, kw_only=True):
    """The whole file. `source` None: there is none, all are defaults."""

    source: str | None = None
    agent: AgentSite = AgentSite()
    slurm: SlurmSite = SlurmSite()
    brake: Brake = Brake()
    scan: ScanSite = ScanSite()
    history: HistorySite = HistorySite()

    @property
    def history_file(self) -> Path:
        """Where this machine's results are kept."""
        return Path(self.history.file) if self.history.file else Path(self.slurm.state_dir, "history.sqlite")

    @property
    def scan_history_file(self) -> Path:
        """Where the scan keeps its results, with those of whole runs: by default the same file."""
        return Path(self.scan.history) if self.scan.history else self.history_file

    @property
    def keep_history_s(self) -> float:
        """How long results are kept, in seconds."""
        return self.history.keep_days * 86400.0


Reader = Callable[[object], Any]


def read_config(path: str | Path | None = None) -> Site:
    """The site's settings. `path` None: the file that PREFLIGHT_CONFIG names, which must be there then; else /etc/preflight/preflight.toml, which may be missing. Raises ConfigError with file, key, value and what was expected."""
    named = path or os.environ.get(VARIABLE)
    source = Path(named) if named else DEFAULT_PATH
    if not named and not os.path.lexists(source):
        return Site()
    _refuse_foreign(source)
    document = read_toml(source)
    text = readable(str(source))
    _refuse_unknown(text, None, document, SECTIONS, "section")
    parts: dict[str, Any] = {}
    for name, (kind, readers) in SECTIONS.items():
        given = document.get(name, {})
        if not isinstance(given, dict):
            raise ConfigError(text, f"{given!r:.80} is not a section, [{name}]", key=name)
        _refuse_unknown(text, name, given, readers, "key")
        parts[name] = kind(
            **dict(_read(text, f"{name}.{key}", value, readers[key], key) for key, value in given.items())
        )
    site = Site(source=text, **parts)
    _refuse_contradictions(text, site)
    return site


def _read(source: str, key: str, value: object, reader: Reader, name: str) -> tuple[str, Any]:
    """Field and value of one key: a duration's field is called as its key, with _s."""
    try:
        return (f"{name}_s" if reader is _seconds else name), reader(value)
    except ValueError as error:
        raise ConfigError(source, f"{value!r:.80} is not {error}", key=key) from None


def _refuse_unknown(
    source: str, parent: str | None, given: Mapping[str, Any], known: Mapping[str, Any], what: str
) -> None:
    for name in given:
        if name not in known:
            import difflib  # only here: a prolog reads this file

            near = difflib.get_close_matches(name[:100], known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            shown = f"{parent}.{name}" if parent else name
            raise ConfigError(source, f"unknown {what}{hint}", key=shown[:120], remedy=f"known: {', '.join(known)}")


def _refuse_foreign(path: Path) -> None:
    """A file of somebody else's, or one that others can write to, must not tell root what to do."""
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(readable(str(path)), f"can't be read: {error.strerror}") from error
    if status.st_uid not in {0, os.geteuid()}:
        raise ConfigError(
            readable(str(path)), f"belongs to user {status.st_uid}, not to root or you", remedy=f"chown root {path}"
        )
    if stat.S_IMODE(status.st_mode) & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(
            readable(str(path)), f"has mode {mode:04o}: others can write to it", remedy=f"chmod go-w {path}"
        )


def _refuse_contradictions(source: str, site: Site) -> None:
    agent = site.agent
    if (agent.first_port is None) != (agent.last_port is None):
        raise ConfigError(source, "first_port and last_port belong together", key="agent.first_port")
    if agent.first_port is not None and agent.last_port is not None and agent.last_port < agent.first_port:
        raise ConfigError(source, f"{agent.last_port} is before first_port {agent.first_port}", key="agent.last_port")
    if site.scan.time_limit_s < site.scan.budget_s:
        problem = f"{site.scan.time_limit_s:g} s would end a job before its budget of {site.scan.budget_s:g} s"
        raise ConfigError(source, problem, key="scan.time_limit")


def _seconds(value: object) -> float:
    try:
        duration_s = (
            parse_seconds(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
        )
    except ValueError:
        duration_s = -1.0
    if not 0 <= duration_s <= 30 * 86400:
        raise ValueError('a duration such as "8s", "5m" or "26h"')
    return duration_s


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - one kind of error for all readers
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > 4096:
        raise ValueError("a text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or len(value) > 64:
        raise ValueError('a list of texts such as ["slurm"]')
    return tuple(_text(each) for each in value)


def _folder(value: object) -> str:
    if not _text(value).startswith("/"):
        raise ValueError("a whole path, beginning with /")
    return str(value)


def _command(value: object) -> tuple[str, ...]:
    words = _texts(value)
    if not words[0].startswith("/"):
        raise ValueError('a command as a list, the program by its whole path: ["/opt/env/bin/python"]')
    return words


def _assignments(value: object) -> tuple[str, ...]:
    words = _texts(value)
    if any(re.match(r"[A-Za-z_][A-Za-z0-9_]*=", word) is None for word in words):
        raise ValueError('a list of variables such as ["NCCL_SOCKET_IFNAME=eth0"]')
    return words


def _whole(low: int, high: int) -> Reader:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return read


def _percent(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 100:
        raise ValueError("a number above 0, to 100")
    return float(value)


def _one_of(*words: str) -> Reader:
    def read(value: object) -> str:
        if value not in words:
            raise ValueError("one of " + ", ".join(words))
        return str(value)

    return read


_PORT = _whole(1, 65535)
SECTIONS: dict[str, tuple[type[Any], dict[str, Reader]]] = {
    "agent": (
        AgentSite,
        {
            "port": _PORT,
            "address": _text,
            "interface": _text,
            "key_file": _folder,
            "users": _texts,
            "munge_socket": _folder,
            "worker_command": _command,
            "worker_environment": _assignments,
            "worker_user": _text,
            "first_port": _PORT,
            "last_port": _PORT,
            "check_every": _seconds,
        },
    ),
    "slurm": (
        SlurmSite,
        {
            "enforce": _flag,
            "when": _one_of("always", "opt-in", "never"),
            "budget": _seconds,
            "controller_budget": _seconds,
            "health_budget": _seconds,
            "state_dir": _folder,
            "textfile_dir": _folder,
            "bin_dir": _folder,
            "plans_dir": _folder,
            "default_plan": _folder,
            "topology": _folder,
            "nobody_guilty": _one_of("hold", "warn"),
            "requeues": _whole(0, 10),
            "verdict_age": _seconds,
            "resume": _flag,
            "rules": _folder,
        },
    ),
    "brake": (
        Brake,
        {
            "nodes": _whole(1, 10_000),
            "percent": _percent,
            "period": _seconds,
            "settle": _seconds,
            "jitter": _seconds,
            "alike": _whole(2, 1000),
        },
    ),
    "scan": (
        ScanSite,
        {
            "partition": _text,
            "plan": _folder,
            "nodes_per_job": _whole(2, 512),
            "max_jobs": _whole(1, 256),
            "budget": _seconds,
            "time_limit": _seconds,
            "jitter": _seconds,
            "qos": _text,
            "account": _text,
            "history": _folder,
            "repeats": _whole(1, 10),
            "sweep": _seconds,
            "age": _seconds,
            "out": _folder,
            "command": _command,
        },
    ),
    "history": (
        HistorySite,
        {
            "file": _folder,
            "keep_days": _whole(1, 3650),
            "node_results": _flag,
        },
    ),
}
