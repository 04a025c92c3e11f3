"""A group of commands of which only the one that is asked for is imported."""

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """Loads a command's module only when that command is asked for. `table`: command -> (module, one line of help); `prefix`: the group's name, which the variables of its options begin with."""

    def __init__(self, *arguments: Any, table: Mapping[str, tuple[str, str]], prefix: str = "", **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.table = table
        self.prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in reading order."""
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        del ctx
        if cmd_name not in self.table:
            return None
        command = importlib.import_module(self.table[cmd_name][0]).command
        assert isinstance(command, click.Command)
        _name_variables(f"{self.prefix}{cmd_name}", command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list for --help, from the table above."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])


def _name_variables(name: str, command: click.Command) -> None:
    """Each option's environment variable is called as the option is: PREFLIGHT_NODE_FROM for `node --from`, whatever the argument's name in Python."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.envvar is None:
            flag = max(parameter.opts, key=len).lstrip("-")
            parameter.envvar = f"PREFLIGHT_{name}_{flag}".replace("-", "_").upper()
