"""What `preflight node` and `preflight topology` look at: this node, or files that tell of one; and what is brought to judge it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from preflight.errors import UsageError
from preflight.model import Evidence, Inventory, Node, OutsideVerdict, Profile, Rule
from preflight.model.units import parse_seconds

MAX_TIMEOUT_S = 3600.0

F = TypeVar("F", bound=Callable[..., object])


class CommandLine(click.types.StringParamType):
    """A command with its arguments. In the environment, several stand one on a line: their arguments are set apart by spaces."""

    name = "command"
    envvar_list_splitter = "\n"


def _timeout(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        timeout_s = parse_seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx=context, param=parameter) from error
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise click.BadParameter(f"{value!r} is not between 0 and 1h", ctx=context, param=parameter)
    return timeout_s


def source_options(function: F) -> F:
    """The options that say which node is meant."""
    options = (
        click.option(
            "--from",
            "from_files",
            metavar="FILE",
            multiple=True,
            help="Instead of this node: a saved snapshot, the text of `nvidia-smi topo -m`, or an NCCL topology XML. Repeatable.",
        ),
        click.option("--product", metavar="NAME", help="The GPU product, where a file doesn't tell it (topo -m)."),
        click.option("--save", metavar="FILE", help="Write the snapshot to FILE."),
        click.option("--root", metavar="DIR", hidden=True, help="Where /proc and /sys are found."),
        click.option(
            "--timeout",
            "timeout_s",
            default="20s",
            show_default=True,
            callback=_timeout,
            help="Limit for the GPU driver to answer.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def load_nodes(
    *,
    from_files: Sequence[str],
    product: str | None,
    save: str | None,
    root: str | None,
    timeout_s: float,
    profiles: Sequence[str] = (),
    meanwhile: Callable[[], object] | None = None,
) -> tuple[Node, ...]:
    """This node, or those of the files. `save`: where it will be written, which is not done here. `meanwhile`: work to do while the driver is asked. Raises PreflightError for bad files."""
    if from_files and root:
        raise UsageError("--from shows files and --root looks at a file tree: give one of them")
    if product and not from_files:
        raise UsageError("--product goes with --from: on this node the driver tells the product")
    if save and len(from_files) > 1:
        raise UsageError("--save writes one node, and several files are given")
    if from_files:
        from preflight.discover.snapshots import read_node

        name = _product_name(product, profiles)
        nodes = tuple(read_node(file, product=name) for file in from_files)
    else:
        from preflight.discover.node import discover_node

        if root and not Path(root).is_dir():
            raise UsageError(f"--root {root}: no such directory")
        nodes = (discover_node(root=Path(root or "/"), deadline_s=timeout_s, meanwhile=meanwhile),)
    _refuse_twice(nodes)
    return nodes


def save_snapshot(nodes: Sequence[Node], path: str | None) -> None:
    """Write the only node where that was asked. Raises WorldError (disk full, no permission)."""
    if path:
        from preflight.formats import write_atomically
        from preflight.model import to_json

        write_atomically(path, to_json(nodes[0]))


def _product_name(product: str | None, profiles: Sequence[str]) -> str | None:
    """The NVML name of what a person calls a product; what was taken for granted is said on stderr."""
    if product is None:
        return None
    from preflight.plan.profiles import product_named

    found = product_named(product, folders_of(profiles))
    if found.note:
        click.echo(f"preflight: --product {product}: {found.note}", err=True)
    return found.name


def _refuse_twice(nodes: Sequence[Node]) -> None:
    names = [node.name for node in nodes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two of the files tell of a node named {twice}; each node may be given once")


def folders_of(given: Sequence[str]) -> list[Path]:
    """Folders with profiles of the site: of installed distributions, then those given, else the one in /etc."""
    from preflight.registry import profile_folders

    for folder in given:
        if not Path(folder).is_dir():
            raise UsageError(f"--profiles {folder}: no such directory")
    return profile_folders([Path(folder) for folder in given])


def gather(
    nodes: tuple[Node, ...],
    *,
    since: Sequence[str] = (),
    imports: Sequence[str] = (),
    plugins: Sequence[str] = (),
    profiles: Sequence[str] = (),
    rules: str | None = None,
    timeout_s: float = 20.0,
) -> Evidence:
    """The evidence about these nodes. Raises PreflightError for bad files; a plug-in that fails is a verdict, not an error."""
    verdicts = _outside_verdicts(imports, plugins, timeout_s)
    if verdicts and len(nodes) > 1:
        raise UsageError("--import and --plugin tell of one node, and several files are given")
    if verdicts:
        import msgspec

        nodes = (msgspec.structs.replace(nodes[0], verdicts=(*nodes[0].verdicts, *verdicts)),)
    inventory = Inventory(nodes=nodes)
    return Evidence(
        inventory=inventory,
        before=_before(since),
        profiles=_profiles(inventory, profiles),
        rules=_rules(rules),
    )


def _profiles(inventory: Inventory, given: Sequence[str]) -> dict[str, Profile]:
    from preflight.plan.profiles import profiles_of

    return profiles_of(inventory, folders_of(given))


def _rules(path: str | None) -> dict[str, Rule]:
    if path is None:
        return {}
    from preflight.plan.rules import check_rules, read_rules_file
    from preflight.registry import load_checks

    rules = read_rules_file(path)
    check_rules(path, rules, {check.name: check.limits for check in load_checks()})
    return rules


def _before(since: Sequence[str]) -> Inventory | None:
    if not since:
        return None
    from preflight.discover.snapshots import read_node

    nodes = tuple(read_node(file) for file in since)
    _refuse_twice(nodes)
    return Inventory(nodes=nodes)


def _outside_verdicts(imports: Sequence[str], plugins: Sequence[str], timeout_s: float) -> tuple[OutsideVerdict, ...]:
    if not imports and not plugins:
        return ()
    import shlex

    from preflight.discover.verdicts import read_verdicts, run_plugin

    found: list[OutsideVerdict] = []
    for file in imports:
        found += read_verdicts(file)
    for line in plugins:
        try:
            argv = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"--plugin {line}: {error}") from error
        if not argv or not Path(argv[0]).is_absolute():
            raise UsageError(
                f"--plugin {line}: give the whole path of the program, as in /usr/lib/nagios/plugins/check_disk"
            )
        found.append(run_plugin(argv, timeout_s))
    return tuple(found)
