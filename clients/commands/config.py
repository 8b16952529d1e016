"""`oncemq config`: the settings that a program goes by, and where each came from."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from clients.commands.options import AsJson
from clients.commands.reaching import Reach, answered, flags_of
from clients.commands.terminal import ExitCode, print_json, show_table
from idl.settings import Program, Value, read_settings

EXAMPLES = {
    "oncemq config": {"oncemq config show": "what every program goes by"},
    "oncemq config show": {
        "oncemq config show": "all settings and their values",
        "oncemq config show --origin": "and where each was set",
        "oncemq config show --program node": "only those of one program",
        "oncemq config show --config /etc/oncemq/oncemq.toml --json": "one object, for scripts",
    },
}


class Who(StrEnum):
    """The programs that have settings."""

    NODE = "node"
    COORDINATOR = "coordinator"
    CLIENT = "client"


def show(
    reach: Reach,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each was set.")] = False,
    program: Annotated[Who | None, typer.Option(help="Only those that this program reads.")] = None,
    as_json: AsJson = False,
) -> int:
    """Shows the settings, as flags, environment, oncemq.toml and defaults make them.

    A setting is taken from the first of these that has it. Secrets are never shown: settings only
    name the files that hold them.
    """

    def run() -> int:
        values = _values(reach, program)
        if as_json:
            print_json({"settings": [_fields(value) for value in values]})
            return ExitCode.OK
        columns = ("setting", "value", "set by") if origin else ("setting", "value")
        rows = [
            (value.setting.key, _shown(value.shown), value.origin)[: len(columns)]
            for value in values
        ]
        show_table(columns, rows, "There are no settings.")
        return ExitCode.OK

    return answered(run)


COMMANDS: dict[str, Callable[..., int]] = {"show": show}


def _values(reach: Reach, program: Who | None) -> list[Value]:
    found: dict[str, Value] = {}
    for each in Program:
        if program is None or each.value == program.value:
            flags = flags_of(reach) if each is Program.CLIENT else {}
            settings = read_settings(each, flags, reach.config)
            found |= {value.setting.key: value for value in settings.values()}
    return list(found.values())


def _fields(value: Value) -> dict[str, Any]:
    return {
        "key": value.setting.key,
        "value": value.shown,
        "origin": value.origin,
        "default": _plain(value.setting.default),
        "variable": value.setting.variable,
        "flag": value.setting.flag,
        "help": value.setting.help,
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case list():
            return ", ".join(value) or "-"
    return str(value)
