"""All settings of the product, in one table, and where each value came from.

A flag goes before a variable `ONCEMQ_...`, that before the file `oncemq.toml`, that before the
default. Everything is checked when it is read, also what the file says to other programs; what is
not known is an error that says what was probably meant. Secrets are no settings: the settings say
in which file they are. What the values are used for is not known here.
"""

from __future__ import annotations

import argparse
import enum
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from idl.call import Address
from idl.mapping import InvalidValue
from idl.toml_files import BadFile, TomlText, find_toml, read_toml, suggestion

FILES = (Path("oncemq.toml"), Path("/etc/oncemq/oncemq.toml"))
MEBIBYTE = 1024 * 1024
UNLIMITED = 2.0**53

_PREFIX = "ONCEMQ_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_PASSWORD = re.compile(r"(://[^/@:]*):[^@]*@")


class Program(enum.Enum):
    """Who reads settings."""

    NODE = "node"
    COORDINATOR = "coordinator"
    CLIENT = "client"


class Kind(enum.Enum):
    """What a value may be; the text is shown to whoever wrote something else."""

    NAME = "a name of at most 64 letters, digits and . _ -"
    ADDRESS = "an address HOST:PORT"
    ADDRESSES = "a list of addresses HOST:PORT"
    NAMES = "a list of names"
    PATH = "a path"
    URL = "mq://HOST:PORT, file:DIR or memory:"
    STORAGE = "paged, memory or sql:URL"
    SWITCH = "true or false"
    COUNT = "a whole number"
    SECONDS = "a number of seconds"
    LEVEL = "debug, info, warning or error"
    FORMAT = "text or json"


_LISTS = (Kind.ADDRESSES, Kind.NAMES)
_METAVARS = {
    Kind.ADDRESS: "HOST:PORT",
    Kind.ADDRESSES: "HOST:PORT",
    Kind.NAMES: "NAME",
    Kind.COUNT: "N",
    Kind.SECONDS: "S",
    Kind.SWITCH: "true|false",
}
_SECTIONS = {
    "server": (Program.NODE,),
    "coordinator": (Program.COORDINATOR,),
    "client": (Program.CLIENT,),
    "tls": (Program.NODE, Program.COORDINATOR, Program.CLIENT),
    "limits": (Program.NODE, Program.COORDINATOR),
    "log": (Program.NODE, Program.COORDINATOR),
}


class BadSetting(BadFile):
    """A setting that cannot be; the message says which, where it was set, and what is allowed."""


@dataclass(frozen=True)
class Setting:
    """One row of the table. A default of None: the setting may be left out."""

    key: str
    kind: Kind
    default: Any
    flag: str
    help: str
    minimum: float = 0
    maximum: float = UNLIMITED
    short_variable: str = ""

    @property
    def variable(self) -> str:
        """The environment variable."""
        return self.short_variable or _PREFIX + self.key.replace(".", "_").upper()

    @property
    def programs(self) -> tuple[Program, ...]:
        """Who reads it."""
        return _SECTIONS[self.key.partition(".")[0]]


# fmt: off
SETTINGS = (
    Setting("server.name", Kind.NAME, "node", "--name",
            "its name; nodes that share a database each have their own"),
    Setting("server.data", Kind.PATH, None, "--data",
            "the directory of its queues"),
    Setting("server.storage", Kind.STORAGE, "paged", "--storage",
            "where messages are kept: paged (in the directory), memory (lost at the end), sql:URL"),
    Setting("server.listen", Kind.ADDRESS, "127.0.0.1:7411", "--listen",
            "where it can be reached; beyond this machine it needs TLS and tokens or certificates"),
    Setting("server.advertise", Kind.ADDRESS, None, "--advertise",
            "the address that others reach it by, if another"),
    Setting("server.coordinator", Kind.ADDRESS, "127.0.0.1:7410", "--coordinator",
            "the coordinator that decides its transactions"),
    Setting("server.create_queues", Kind.SWITCH, True, "--create-queues",
            "whether a queue is made when it is first used, or by operators only"),
    Setting("server.trust", Kind.ADDRESSES, (), "--trust",
            "further servers that callers may refer it to"),
    Setting("server.tokens", Kind.PATH, None, "--tokens",
            "file of name:sha256 of those who may connect"),
    Setting("server.token_file", Kind.PATH, None, "--token-file",
            "file of the token by which it proves itself to the coordinator"),
    Setting("server.permissions", Kind.PATH, None, "--permissions",
            "file of who may do what to which queue"),
    Setting("server.metrics_listen", Kind.ADDRESS, None, "--metrics-listen",
            "where /metrics, /healthz and /readyz can be had by HTTP; nowhere if not set"),
    Setting("coordinator.data", Kind.PATH, None, "--data",
            "the directory of its log"),
    Setting("coordinator.listen", Kind.ADDRESS, "127.0.0.1:7410", "--listen",
            "where it can be reached; beyond this machine it needs TLS and tokens or certificates"),
    Setting("coordinator.advertise", Kind.ADDRESS, None, "--advertise",
            "the address that others reach it by, if another"),
    Setting("coordinator.trust", Kind.ADDRESSES, (), "--trust",
            "the nodes; it shows its token to no other"),
    Setting("coordinator.tokens", Kind.PATH, None, "--tokens",
            "file of name:sha256 of those who may connect"),
    Setting("coordinator.token_file", Kind.PATH, None, "--token-file",
            "file of the token by which it proves itself to nodes"),
    Setting("coordinator.operators", Kind.NAMES, (), "--operator",
            "who may use oncemq tx"),
    Setting("coordinator.session_timeout_s", Kind.SECONDS, 30.0, "--session-timeout",
            "how long a client may be silent before what it has not decided is rolled "
            "back", 0.1, 86400),
    Setting("coordinator.metrics_listen", Kind.ADDRESS, None, "--metrics-listen",
            "where /metrics, /healthz and /readyz can be had by HTTP; nowhere if not set"),
    Setting("client.url", Kind.URL, "mq://127.0.0.1:7411", "--url",
            "the node to connect to", short_variable="ONCEMQ_URL"),
    Setting("client.coordinator", Kind.ADDRESS, "127.0.0.1:7410", "--coordinator",
            "the coordinator to ask", short_variable="ONCEMQ_COORDINATOR"),
    Setting("client.token_file", Kind.PATH, None, "--token-file",
            "file of the token by which the client proves "
            "itself", short_variable="ONCEMQ_TOKEN_FILE"),
    Setting("client.timeout_s", Kind.SECONDS, 10.0, "--timeout",
            "how long an answer is waited for", 0.01, 3600, "ONCEMQ_TIMEOUT_S"),
    Setting("tls.authority", Kind.PATH, None, "--tls-authority",
            "certificate that signs everybody's"),
    Setting("tls.certificate", Kind.PATH, None, "--tls-certificate",
            "its own certificate"),
    Setting("tls.key", Kind.PATH, None, "--tls-key",
            "its own key, if not with the certificate"),
    Setting("limits.connections", Kind.COUNT, 512, "--max-connections",
            "connections at a time", 1, 100_000),
    Setting("limits.connections_before_login", Kind.COUNT, 64, "",
            "connections that have not proven themselves yet", 1, 10_000),
    Setting("limits.call_bytes", Kind.COUNT, 64 * MEBIBYTE, "",
            "size of one call or answer", 65_536, 1024 * MEBIBYTE),
    Setting("limits.message_bytes", Kind.COUNT, 16 * MEBIBYTE, "--max-message-bytes",
            "size of one message; less than that of a call", 1, 1024 * MEBIBYTE),
    Setting("limits.login_s", Kind.SECONDS, 3.0, "",
            "time for proving oneself", 0.1, 60),
    Setting("limits.transfer_s", Kind.SECONDS, 30.0, "",
            "time for sending one call or answer", 0.1, 3600),
    Setting("limits.idle_s", Kind.SECONDS, 600.0, "",
            "time after which a silent connection is closed", 1, 86400),
    Setting("limits.drain_s", Kind.SECONDS, 10.0, "",
            "time for running calls when it is told to stop", 0, 600),
    Setting("limits.transactions_per_principal", Kind.COUNT, 10_000, "",
            "open transactions of one client at a node", 1),
    Setting("limits.transaction_messages", Kind.COUNT, 1_000_000, "",
            "messages in one transaction at a node", 1),
    Setting("limits.transaction_bytes", Kind.COUNT, 256 * MEBIBYTE, "",
            "bytes put by one transaction at a node", 1),
    Setting("limits.queues", Kind.COUNT, 10_000, "",
            "queues of a node", 1, 1_000_000),
    Setting("limits.lock_wait_s", Kind.SECONDS, 5.0, "",
            "time that a get by key waits for another transaction", 0, 3600),
    Setting("limits.silent_s", Kind.SECONDS, 300.0, "",
            "silence after which a node rolls back work that was not prepared", 1, 86400),
    Setting("log.level", Kind.LEVEL, "info", "--log-level",
            "what is logged: debug, info, warning, error"),
    Setting("log.format", Kind.FORMAT, "text", "--log-format",
            "text, or json for one object a line"),
)
# fmt: on
BY_KEY = {setting.key: setting for setting in SETTINGS}


class Value(NamedTuple):
    """A value, and where it was set."""

    setting: Setting
    value: Any
    origin: str

    @property
    def shown(self) -> Any:
        """The value for people and JSON; a password in a URL is left out."""
        if isinstance(self.value, str):
            return _PASSWORD.sub(r"\1:***@", self.value)
        if isinstance(self.value, tuple):
            return [str(each) for each in self.value]
        return self.value if isinstance(self.value, int | float | None) else str(self.value)


class Settings:
    """The values that one program goes by."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key].value

    def origin(self, key: str) -> str:
        """Where the value was set: a flag, a variable, a line of a file, or by default."""
        return self._values[key].origin

    def values(self) -> list[Value]:
        """Every value, in the order of the table."""
        return list(self._values.values())


def add_flags(parser: argparse.ArgumentParser, program: Program) -> None:
    """The parser knows the flags of a program, and `--config`."""
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"instead of {FILES[0]}")
    for setting in SETTINGS:
        if program in setting.programs and setting.flag:
            shown = "" if setting.default in (None, ()) else f" (default {setting.default})"
            parser.add_argument(
                setting.flag,
                dest=setting.key,
                metavar=_METAVARS.get(setting.kind, setting.kind.name),
                help=setting.help + shown,
                action="append" if setting.kind in _LISTS else "store",
            )


def flags_of(parsed: argparse.Namespace) -> dict[str, Any]:
    """What was said by flags that `add_flags` has added."""
    return {
        key: value for key, value in vars(parsed).items() if key in BY_KEY and value is not None
    }


def read_settings(
    program: Program,
    flags: Mapping[str, str | Sequence[str]],
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """What the program goes by. Raises `BadFile`; without `environment` it is this process's."""
    variables = os.environ if environment is None else environment
    path = find_toml(FILES) if config is None else config
    return combine(program, flags, variables, None if path is None else read_toml(path))


def combine(
    program: Program,
    flags: Mapping[str, str | Sequence[str]],
    variables: Mapping[str, str],
    text: TomlText | None,
) -> Settings:
    """What the program goes by, of all that was said. Raises `BadSetting`."""
    _refuse_unknown_variables(variables)
    written = {} if text is None else _check_file(text)
    values = {}
    for setting in SETTINGS:
        if program in setting.programs:
            values[setting.key] = _value(setting, flags, variables, written)
    return Settings(values)


# --- One value -----------------------------------------------------------------------------------


def _value(
    setting: Setting,
    flags: Mapping[str, str | Sequence[str]],
    variables: Mapping[str, str],
    written: Mapping[str, Value],
) -> Value:
    if setting.key in flags:
        return _checked(setting, flags[setting.key], f"flag {setting.flag}")
    if variables.get(setting.variable):
        text = variables[setting.variable]
        said = text.replace(",", " ").split() if setting.kind in _LISTS else text
        return _checked(setting, said, f"environment {setting.variable}")
    if setting.key in written:
        return written[setting.key]
    return _checked(setting, setting.default, "default")


def _checked(setting: Setting, said: Any, origin: str, folder: Path | None = None) -> Value:
    if said is None or said == ():
        return Value(setting, said, origin)
    try:
        value = _converted(setting, said)
    except (InvalidValue, ValueError, TypeError, KeyError) as wrong:
        reason = f" ({wrong})" if isinstance(wrong, InvalidValue) else ""
        shown = _PASSWORD.sub(r"\1:***@", str(said))[:100]
        told = f"{origin}: {setting.key} is {_allowed(setting)}, not {shown!r}{reason}"
        raise BadSetting(told) from wrong
    if folder is not None and isinstance(value, Path):
        value = folder / value
    return Value(setting, value, origin)


def _converted(setting: Setting, said: Any) -> Any:
    kind = setting.kind
    if kind in _LISTS:
        return _list(kind, said)
    if kind in (Kind.COUNT, Kind.SECONDS):
        return _number(setting, said)
    if kind is Kind.SWITCH:
        return {True: True, False: False, "true": True, "false": False}[said]
    if not isinstance(said, str) or not said or not said.isprintable():
        raise ValueError
    if kind is Kind.ADDRESS:
        return Address.parse(said)
    if kind is Kind.PATH:
        return Path(said)
    if not _FITS[kind](said):
        raise ValueError
    return said


_FITS: dict[Kind, Callable[[str], bool]] = {
    Kind.NAME: lambda said: _NAME.fullmatch(said) is not None,
    Kind.URL: lambda said: said.startswith(("mq://", "file:")) or said == "memory:",
    Kind.STORAGE: lambda said: said in ("paged", "memory") or said.startswith("sql:"),
    Kind.LEVEL: lambda said: said in ("debug", "info", "warning", "error"),
    Kind.FORMAT: lambda said: said in ("text", "json"),
}


def _list(kind: Kind, said: Any) -> tuple[Any, ...]:
    if not isinstance(said, list | tuple) or not all(isinstance(each, str) for each in said):
        raise ValueError
    if kind is Kind.ADDRESSES:
        return tuple(Address.parse(each) for each in said)
    if not all(each and each.isprintable() for each in said):
        raise ValueError
    return tuple(said)


def _number(setting: Setting, said: Any) -> float:
    if isinstance(said, bool) or not isinstance(said, str | int | float):
        raise ValueError
    if setting.kind is Kind.COUNT and isinstance(said, float):
        raise ValueError
    number = int(said) if setting.kind is Kind.COUNT else float(said)
    if not setting.minimum <= number <= setting.maximum:
        raise ValueError
    return number


def _allowed(setting: Setting) -> str:
    words = str(setting.kind.value)
    if setting.kind not in (Kind.COUNT, Kind.SECONDS):
        return words
    end = f" to {setting.maximum:.12g}" if setting.maximum < UNLIMITED else ""
    return f"{words} from {setting.minimum:.12g}{end}"


# --- The file and the environment ----------------------------------------------------------------


def _check_file(text: TomlText) -> dict[str, Value]:
    written = {}
    folder = Path(text.name).absolute().parent
    for section, table in text.values.items():
        if section not in _SECTIONS:
            told = f"{text.where(section)}: there is no section [{section}]"
            raise BadSetting(f"{told}; {suggestion(section, _SECTIONS)}")
        if not isinstance(table, dict):
            raise BadSetting(f"{text.where(section)}: write [{section}] as a section")
        for name, said in table.items():
            setting = BY_KEY.get(f"{section}.{name}")
            if setting is None:
                raise BadSetting(_unknown(text.where(section, name), section, name))
            value = _checked(setting, said, text.where(section, name), folder)
            written[setting.key] = value
    return written


def _unknown(where: str, section: str, name: str) -> str:
    keys = [
        setting.key.partition(".")[2]
        for setting in SETTINGS
        if setting.key.startswith(f"{section}.")
    ]
    return f"{where}: there is no setting {section}.{name}; {suggestion(name, keys)}"


def _refuse_unknown_variables(variables: Mapping[str, str]) -> None:
    known = {setting.variable for setting in SETTINGS}
    prefixes = tuple(f"{_PREFIX}{section.upper()}_" for section in _SECTIONS)
    for name in variables:
        if name.startswith(prefixes) and name not in known:
            told = f"environment {name}: there is no such setting"
            raise BadSetting(f"{told}; {suggestion(name, known)}")
