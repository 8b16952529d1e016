"""Which databases the coordinator knows: what the file may say, and that it is replaced whole."""

from __future__ import annotations

import pytest

from coordinator.registry import (
    FILE_NAME,
    NEW_NAME,
    Registered,
    Registry,
    read_registry,
    write_registry,
)
from idl.mapping import InvalidValue
from idl.toml_files import BadFile
from tests.crash.crash_states import crash_states
from tests.crash.recording_disk import RecordingDisk

ORDERS = Registered("orders", "postgresql://app@10.0.0.5/orders", password_file="/etc/secret")
STOCK = Registered("stock", 'sqlite:////data/a "b".db', grace_s=5.0)


def test_what_is_written_is_read_again() -> None:
    databases = {"orders": ORDERS, "stock": STOCK}
    assert read_registry(write_registry(databases)) == databases


@pytest.mark.parametrize(
    ("dsn", "told"),
    [
        ("postgresql://app:hush@host/orders", "holds a password"),
        ("postgresql://app@host/orders?password=hush", "holds a password"),
        ("mariadb://app@host/orders?sslpassword=hush", "holds a password"),
        ("oracle://app@host/orders", "postgresql://USER@HOST"),
        ("host=db dbname=orders", "postgresql://USER@HOST"),
        ("postgresql://app@host", "names no database"),
        ("postgresql://app@host:x/orders", "is not an address"),
        ("sqlite://app.db", "the whole path"),
    ],
)
def test_an_address_that_cannot_be_kept_is_refused(dsn: str, told: str) -> None:
    with pytest.raises(InvalidValue, match=told) as refused:
        Registered("orders", dsn)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[databases.a]\npasword_file = '/x'\ndsn = 'sqlite:////x'",
            "did you mean 'password_file'",
        ),
        ("[databases.a]\npassword = 'hush'\ndsn = 'sqlite:////x'", "there is no key 'password'"),
        ("[databases.a]\ndsn = 'postgresql://u:hush@h/d'", "holds a password"),
        ("[databases.a]\ngrace_s = 5", "needs a dsn"),
        ("[databases.'a/b']\ndsn = 'sqlite:////x'", "database name 'a/b'"),
        ("[other]\nx = 1", "write .databases.NAME."),
        ("[databases.a]\ndsn = 'sqlite:////x'\ngrace_s = true", "not of the right kind"),
        ("[databases.a]\ndsn = 'sqlite:////x'\ngrace_s = -1", "grace_s -1"),
        ("[databases.a]\ndsn = 'sqlite:////x'\npassword_env = 'x y'", "not a name of the"),
        ("[databases.a]\ndsn = 'sqlite:////x'\npassword_file = 'x'", "the whole path"),
    ],
)
def test_a_file_that_says_something_wrong_is_refused_with_the_line(text: str, told: str) -> None:
    with pytest.raises(BadFile, match=told) as refused:
        read_registry(text)
    assert str(refused.value).startswith(f"{FILE_NAME}:")
    assert "hush" not in str(refused.value)


def test_the_table_has_its_schema_in_its_name() -> None:
    assert ORDERS.table == '"public".oncemq_outcome'
    assert Registered("a", ORDERS.dsn, schema="mine").table == '"mine".oncemq_outcome'
    assert Registered("a", "mariadb://u@h/shop").table == "`shop`.oncemq_outcome"
    with pytest.raises(InvalidValue, match="schema"):
        Registered("a", ORDERS.dsn, schema='x"; DROP TABLE y')


def test_a_change_of_the_file_is_noticed_once() -> None:
    disk = RecordingDisk()
    registry = Registry(disk)
    assert registry.load()
    assert not registry.load()
    Registry(disk).save({"orders": ORDERS})
    assert registry.load()
    assert registry.databases == {"orders": ORDERS}
    assert not registry.load()


def test_a_file_that_was_spoiled_by_hand_leaves_what_was_known() -> None:
    disk = RecordingDisk()
    registry = Registry(disk)
    registry.save({"orders": ORDERS})
    file = disk.open(FILE_NAME)
    file.write(0, b"\xff")
    with pytest.raises(BadFile):
        registry.load()
    assert registry.databases == {"orders": ORDERS}
    assert not registry.load()
    # Nor is it overwritten: what somebody wrote by hand would be lost.
    with pytest.raises(BadFile):
        registry.save({"stock": STOCK})
    assert file.read(0, 1) == b"\xff"


def test_a_power_cut_at_any_moment_leaves_the_old_file_or_the_new_one() -> None:
    disk = RecordingDisk()
    Registry(disk).save({"orders": ORDERS})
    changing = RecordingDisk(disk.image())
    Registry(changing).save({"stock": STOCK})
    changing.note("saved")
    found = set()
    for state in crash_states(changing.trace, 0, 1000):
        again = Registry(state.disk())
        again.load()
        found.add((tuple(again.databases), state.events))
    assert found == {(("orders",), ()), (("stock",), ()), (("stock",), ("saved",))}


def test_what_a_crash_left_of_a_new_file_is_in_nobodys_way() -> None:
    disk = RecordingDisk({NEW_NAME: b"[databases.half" * 100})
    registry = Registry(disk)
    registry.save({"orders": ORDERS})
    assert Registry(disk).load()
    assert registry.databases == {"orders": ORDERS}
