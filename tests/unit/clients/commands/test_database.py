"""`oncemq database`: databases are registered, listed and removed; passwords never travel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients.commands.terminal import ExitCode
from tests.unit.clients.command_node import CommandNode, command_node

NOWHERE = "sqlite:////nowhere/at/all.db"


@pytest.fixture
def node(capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[CommandNode]:
    with command_node(capfdbinary) as made:
        yield made


def test_a_database_that_is_away_is_registered_and_said_to_be_away(node: CommandNode) -> None:
    added = node.run("database", "add", "stock", NOWHERE)
    assert added.code == ExitCode.UNREACHABLE
    assert added.text == "stock is registered.\n"
    assert "it cannot be reached: /nowhere/at/all.db: unable to open" in added.err
    [found] = node.run("database", "list", "--json").json["databases"]
    assert (found["name"], found["kind"], found["dsn"]) == ("stock", "sqlite", NOWHERE)
    assert (found["reachable"], found["two_phase"], found["identity"]) == (False, False, "")
    assert "unable to open" in found["trouble"]
    assert node.run("database", "list").text.startswith("stock\tsqlite\t" + NOWHERE)


def test_an_address_with_a_password_is_refused_before_it_is_sent(node: CommandNode) -> None:
    refused = node.run("database", "add", "orders", "postgresql://app:hush@host/orders")
    assert refused.code == ExitCode.USAGE
    assert "--password-file" in refused.err
    assert "hush" not in refused.err
    assert node.run("database", "list", "--json").json == {"databases": []}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("orders", "oracle://host/x"), "is not an address of a database"),
        (("orders", "postgresql://host/x", "--schema", "a b"), "not the name of a schema"),
        (("orders", "postgresql://host/x", "--grace", "soon"), "is not a time"),
        (("no/name", NOWHERE), "database name 'no/name'"),
        (("orders", NOWHERE, "--password-file", "here"), "write the whole path"),
    ],
)
def test_what_cannot_be_registered_is_explained(
    node: CommandNode, arguments: tuple[str, ...], told: str
) -> None:
    refused = node.run("database", "add", *arguments)
    assert refused.code in (ExitCode.USAGE, ExitCode.REFUSED)
    assert told in refused.err


def test_the_statements_for_who_owns_the_database_is_printed(node: CommandNode) -> None:
    node.run("database", "add", "stock", NOWHERE)
    printed = node.run("database", "prepare", "stock", "--sql")
    assert printed.text.startswith('CREATE TABLE IF NOT EXISTS "main".oncemq_outcome (otid TEXT')
    assert printed.text.endswith(";\n")
    [_, carried] = printed.text.splitlines()
    assert carried.startswith('CREATE TABLE IF NOT EXISTS "main".oncemq_carried (otid TEXT')


def test_a_removed_database_is_gone_and_an_unknown_one_has_a_code(node: CommandNode) -> None:
    node.run("database", "add", "stock", NOWHERE)
    assert node.run("database", "remove", "stock", "--yes").code == ExitCode.OK
    for command in (
        ("remove", "stock", "--yes"),
        ("prepare", "stock"),
        ("prepare", "stock", "--sql"),
    ):
        missing = node.run("database", *command)
        assert missing.code == ExitCode.NOT_FOUND, command
        assert "no database is registered as 'stock'" in missing.err
