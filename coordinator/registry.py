"""The databases that the coordinator knows: a file of its directory, for people and for commands.

    [databases.orders]
    dsn = "postgresql://app@10.0.0.5/orders"
    password_file = "/etc/oncemq/orders.password"
    schema = "public"
    grace_s = 60
    identity = "9f0c2d6b1e55a7c3"

No secret is ever in it: an address with a password is refused. `password_file` and `password_env`
say where one is; without them the driver looks where it always does. The identity is noted when the
database is first seen, so that another in its place is not believed. The file may be changed by
hand while the coordinator runs. It is replaced as a whole, so that a crash leaves the old one or
the new one. It knows no driver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from idl.databases import Dsn, check_name, parse_dsn, table_of
from idl.mapping import InvalidValue
from idl.toml_files import BadFile, TomlText, parse_toml, suggestion
from mqserver.storage.disk import Disk

FILE_NAME = "databases.toml"
NEW_NAME = "databases.toml.new"
FILE_BYTES_MAX = 1024 * 1024
DATABASES_MAX = 100
GRACE_S = 60.0

_SECTION = "databases"
_is_variable = re.compile(r"[A-Z_][A-Z0-9_]{0,63}", re.ASCII).fullmatch


@dataclass(frozen=True)
class Registered:
    """A database as the file has it; checked when it is made."""

    name: str
    dsn: str
    password_file: str = ""
    password_env: str = ""
    schema: str = ""
    grace_s: float = GRACE_S
    # What its table said when it was first seen. Another database in its place has no marks.
    identity: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)
        table_of(parse_dsn(self.dsn), self.schema)
        if self.password_file and self.password_env:
            raise InvalidValue("a password is in a file or in the environment, not in both")
        if self.password_file and not self.password_file.startswith("/"):
            raise InvalidValue(f"password_file {self.password_file!r}: write the whole path")
        if self.password_env and not _is_variable(self.password_env):
            raise InvalidValue(
                f"password_env {self.password_env[:60]!r} is not a name of the environment: use "
                "capital letters, digits and underscores"
            )
        if not 0 < self.grace_s <= 86_400:
            raise InvalidValue(f"grace_s {self.grace_s!r} is not between 0 and a day")

    @property
    def where(self) -> Dsn:
        """Where it is, in parts."""
        return parse_dsn(self.dsn)

    @property
    def table(self) -> str:
        """Its outcome table, as statements name it."""
        return table_of(self.where, self.schema)


Databases = Mapping[str, Registered]

_TYPES: dict[str, tuple[type, ...]] = {
    "dsn": (str,),
    "password_file": (str,),
    "password_env": (str,),
    "schema": (str,),
    "grace_s": (int, float),
    "identity": (str,),
}


def read_registry(text: str, name: str = FILE_NAME) -> dict[str, Registered]:
    """What the file says. Raises `BadFile` with the line."""
    found = parse_toml(text, name)
    for section in found.values:
        if section != _SECTION:
            raise BadFile(f"{found.where(section)}: {section!r}: write [{_SECTION}.NAME]")
    databases = found.values.get(_SECTION, {})
    if not isinstance(databases, dict) or len(databases) > DATABASES_MAX:
        raise BadFile(f"{found.where(_SECTION)}: up to {DATABASES_MAX} tables [{_SECTION}.NAME]")
    return {key: _entry(found, key, values) for key, values in databases.items()}


def _entry(found: TomlText, name: str, values: Any) -> Registered:
    if not isinstance(values, dict) or "dsn" not in values:
        raise BadFile(f"{found.where(_SECTION, name)}: {name} needs a dsn")
    for key, value in values.items():
        where = found.where(_SECTION, name, key)
        if key not in _TYPES:
            raise BadFile(f"{where}: there is no key {key!r}: {suggestion(key, _TYPES)}")
        if not isinstance(value, _TYPES[key]) or isinstance(value, bool):
            raise BadFile(f"{where}: {key} is not of the right kind")
    try:
        return Registered(name, **values)
    except InvalidValue as wrong:
        raise BadFile(f"{found.where(_SECTION, name)}: {wrong}") from wrong


def write_registry(databases: Databases) -> str:
    """The text of the file."""
    lines = ["# Databases in transactions: see `oncemq database --help`. No passwords in here."]
    for name, each in sorted(databases.items()):
        lines += ["", f"[{_SECTION}.{name}]", f"dsn = {_quoted(each.dsn)}"]
        if each.password_file:
            lines.append(f"password_file = {_quoted(each.password_file)}")
        if each.password_env:
            lines.append(f"password_env = {_quoted(each.password_env)}")
        if each.schema:
            lines.append(f"schema = {_quoted(each.schema)}")
        if each.grace_s != GRACE_S:
            lines.append(f"grace_s = {each.grace_s!r}")
        if each.identity:
            lines.append(f"identity = {_quoted(each.identity)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    # A JSON string is a basic string of TOML, but for one character.
    return json.dumps(text).replace("\x7f", "\\u007f")


class Registry:
    """The file in a directory. One thread at a time."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._data: bytes | None = None
        self._wrong: BadFile | None = None
        self.databases: dict[str, Registered] = {}

    def load(self) -> bool:
        """Whether the file says something new; then that is what holds. Raises `BadFile`."""
        data = self._read()
        if data == self._data:
            return False
        # Noted first: what is wrong is complained about once, and not with every look.
        self._data = data
        try:
            self.databases = read_registry(_text(data))
        except BadFile as wrong:
            self._wrong = wrong
            raise
        self._wrong = None
        return True

    def save(self, databases: Databases) -> None:
        """The file says this, also after a power cut. Raises `BadFile` if it cannot be read."""
        if self._wrong is not None:
            # Somebody is at work on it, whose words would be lost.
            raise self._wrong
        text = write_registry(databases)
        assert read_registry(text) == dict(databases)
        if self._disk.exists(NEW_NAME):
            # Left by a crash.
            self._disk.remove(NEW_NAME)
        file = self._disk.open(NEW_NAME, create=True)
        try:
            file.write(0, text.encode())
            file.sync()
        finally:
            file.close()
        # After this line a start finds the new file or the old one, and never a part.
        self._disk.rename(NEW_NAME, FILE_NAME)
        self._disk.sync_directory()
        self._data, self.databases = text.encode(), dict(databases)

    def _read(self) -> bytes:
        if not self._disk.exists(FILE_NAME):
            return b""
        file = self._disk.open(FILE_NAME)
        try:
            return file.read(0, FILE_BYTES_MAX + 1)
        finally:
            file.close()


def _text(data: bytes) -> str:
    if len(data) > FILE_BYTES_MAX:
        raise BadFile(f"{FILE_NAME} has more than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as wrong:
        raise BadFile(f"{FILE_NAME} is not UTF-8 text") from wrong
