"""Settings: one table, four places to set them, and an error that says where."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from idl.call import Address
from idl.settings import (
    SETTINGS,
    BadSetting,
    Program,
    Settings,
    add_flags,
    combine,
    flags_of,
)
from idl.toml_files import BadFile, parse_toml

FILE = """\
[server]
data = "store"
listen = "127.0.0.1:9000"

[log]
level = "debug"
"""


def _read(
    text: str = "",
    flags: dict[str, Any] | None = None,
    variables: dict[str, str] | None = None,
    program: Program = Program.NODE,
) -> Settings:
    return combine(program, flags or {}, variables or {}, parse_toml(text, "/etc/x/oncemq.toml"))


def test_what_is_not_set_has_its_default() -> None:
    settings = combine(Program.NODE, {}, {}, None)
    assert settings["server.listen"] == Address("127.0.0.1", 7411)
    assert settings.origin("server.listen") == "default"
    assert settings["server.data"] is None


def test_a_flag_goes_before_a_variable_and_that_before_the_file() -> None:
    variables = {"ONCEMQ_SERVER_LISTEN": "127.0.0.1:2"}
    flags = {"server.listen": "127.0.0.1:3"}
    assert _read(FILE)["server.listen"].port == 9000
    assert _read(FILE, variables=variables)["server.listen"].port == 2
    assert _read(FILE, flags, variables)["server.listen"].port == 3


def test_every_value_knows_where_it_was_set() -> None:
    flags = {"server.name": "n7"}
    settings = _read(FILE, flags, {"ONCEMQ_LIMITS_QUEUES": "5"})
    assert settings.origin("server.name") == "flag --name"
    assert settings.origin("limits.queues") == "environment ONCEMQ_LIMITS_QUEUES"
    assert settings.origin("server.listen") == "/etc/x/oncemq.toml:3"
    assert settings.origin("log.level") == "/etc/x/oncemq.toml:6"
    assert settings.origin("log.format") == "default"


def test_a_path_in_a_file_is_meant_from_there() -> None:
    assert _read(FILE)["server.data"] == Path("/etc/x/store")
    assert _read(FILE, {"server.data": "store"})["server.data"] == Path("store")


def test_a_program_has_its_own_settings_only() -> None:
    keys = [value.setting.key for value in _read(program=Program.CLIENT).values()]
    assert keys[:2] == ["client.url", "client.coordinator"]
    assert not [key for key in keys if key.startswith(("server.", "limits."))]


def test_the_promised_variables_are_read() -> None:
    variables = {"ONCEMQ_URL": "mq://127.0.0.1:1", "ONCEMQ_COORDINATOR": "127.0.0.1:2"}
    settings = _read(variables=variables, program=Program.CLIENT)
    assert settings["client.url"] == "mq://127.0.0.1:1"
    assert settings["client.coordinator"] == Address("127.0.0.1", 2)


def test_a_list_may_be_set_in_every_place() -> None:
    wanted = (Address("a", 1), Address("b", 2))
    written = '[coordinator]\ntrust = ["a:1", "b:2"]'
    for settings in (
        _read(written, program=Program.COORDINATOR),
        _read(variables={"ONCEMQ_COORDINATOR_TRUST": "a:1,b:2"}, program=Program.COORDINATOR),
        _read(flags={"coordinator.trust": ["a:1", "b:2"]}, program=Program.COORDINATOR),
    ):
        assert settings["coordinator.trust"] == wanted


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[sever]", "/etc/x/oncemq.toml:1: there is no section [sever]; did you mean 'server'?"),
        ("server = 1", "/etc/x/oncemq.toml:1: write [server] as a section"),
        ('[server]\n\nlisen = "x"', ":3: there is no setting server.lisen; did you mean 'listen'?"),
        ("[server]\nlisten = 7411", ":2: server.listen is an address HOST:PORT, not '7411'"),
        ('[server]\nlisten = "a:70000"', ":2: server.listen is an address HOST:PORT"),
        ('[server]\nlisten = "7411"', ":2: server.listen is an address HOST:PORT"),
        ('[limits]\nqueues = "many"', ":2: limits.queues is a whole number from 1 to 1000000"),
        ("[limits]\nqueues = 0", ":2: limits.queues is a whole number from 1 to 1000000, not '0'"),
        ("[limits]\nqueues = 1.5", ":2: limits.queues is a whole number"),
        ("[limits]\nqueues = true", ":2: limits.queues is a whole number"),
        ("[limits]\nidle_s = nan", ":2: limits.idle_s is a number of seconds from 1 to 86400"),
        ('[log]\nlevel = "loud"', ":2: log.level is debug, info, warning or error, not 'loud'"),
        ('[server]\nstorage = "disk"', ":2: server.storage is paged, memory or sql:URL"),
        ('[coordinator]\ntrust = "a:1"', ":2: coordinator.trust is a list of addresses"),
        ('[server]\ndata = "a\\u0000b"', ":2: server.data is a path"),
        ('[server]\nname = "a b"', ":2: server.name is a name of at most 64"),
        ("[server\n", "/etc/x/oncemq.toml:1: "),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(text: str, told: str) -> None:
    with pytest.raises(BadFile) as wrong:
        _read(text)
    assert told in str(wrong.value)


def test_what_the_file_says_to_another_program_is_checked_too() -> None:
    with pytest.raises(BadSetting, match=r"limits\.queues"):
        _read("[limits]\nqueues = 0", program=Program.CLIENT)


def test_a_variable_that_is_no_setting_is_an_error() -> None:
    with pytest.raises(BadSetting) as wrong:
        _read(variables={"ONCEMQ_SERVER_LISEN": "x"})
    assert "did you mean 'ONCEMQ_SERVER_LISTEN'?" in str(wrong.value)
    _read(variables={"ONCEMQ_TRACEBACK": "1", "OTHER_SERVER_LISEN": "x"})


def test_a_wrong_variable_and_a_wrong_flag_are_named() -> None:
    with pytest.raises(BadSetting, match=r"ONCEMQ_SERVER_LISTEN: server\.listen is"):
        _read(variables={"ONCEMQ_SERVER_LISTEN": "x"})
    with pytest.raises(BadSetting, match=r"flag --listen: server\.listen is"):
        _read(flags={"server.listen": "x"})


def test_a_password_in_a_url_is_not_shown() -> None:
    url = "sql:postgresql://mq:canary@db/mq"
    settings = _read(flags={"server.storage": url})
    assert settings["server.storage"] == url
    assert not [value for value in settings.values() if "canary" in str(value.shown)]
    with pytest.raises(BadSetting) as wrong:
        _read(flags={"server.storage": url.removeprefix("sql:")})
    assert "canary" not in str(wrong.value)


def test_flags_are_read_as_they_were_said() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Program.COORDINATOR)
    said = parser.parse_args(["--data", "d", "--operator", "a", "--operator", "b"])
    assert flags_of(said) == {"coordinator.data": "d", "coordinator.operators": ["a", "b"]}
    settings = _read(flags=flags_of(said), program=Program.COORDINATOR)
    assert settings["coordinator.operators"] == ("a", "b")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_default_is_a_value_that_could_have_been_set(setting: Any) -> None:
    settings = combine(setting.programs[0], {}, {}, None)
    value = settings[setting.key]
    if setting.default not in (None, ()):
        said: Any = value if isinstance(value, int | float) else str(value)
        assert combine(setting.programs[0], {setting.key: said}, {}, None)[setting.key] == value


def test_no_two_settings_of_a_program_share_a_flag_or_a_variable() -> None:
    variables = [setting.variable for setting in SETTINGS]
    assert len(set(variables)) == len(variables)
    for program in Program:
        flags = [each.flag for each in SETTINGS if program in each.programs and each.flag]
        assert len(set(flags)) == len(flags)
