"""`oncemq queue` against a node in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients.commands.terminal import ExitCode
from tests.unit.clients.command_node import CommandNode, command_node


@pytest.fixture
def node(capsysbinary: pytest.CaptureFixture[bytes]) -> Iterator[CommandNode]:
    with command_node(capsysbinary) as made:
        yield made


def test_a_queue_is_made_with_its_settings_and_listed_for_a_pipe(node: CommandNode) -> None:
    made = node.run("queue", "create", "jobs", "--prioritized", "--messages-max", "3")
    assert (made.code, made.text, made.err) == (ExitCode.OK, "There is a queue jobs.\n", "")
    assert node.run("queue", "list").text == "jobs\t0\t0\t0\t-\ton, prioritized\n"
    (listed,) = node.run("queue", "list", "--json").json["queues"]
    assert listed == node.run("queue", "status", "jobs", "--json").json
    fields = "name enabled prioritized messages held bytes oldest_s messages_max bytes_max"
    assert " ".join(listed) == fields
    assert (listed["prioritized"], listed["messages_max"]) == (True, 3)


def test_a_queue_that_exists_is_not_made_again(node: CommandNode) -> None:
    node.run("queue", "create", "jobs")
    again = node.run("queue", "create", "jobs")
    assert (again.code, again.text) == (ExitCode.REFUSED, "")
    assert "There is a queue with this name already" in again.err


def test_settings_that_are_not_named_stay(node: CommandNode) -> None:
    node.run("queue", "create", "jobs", "--prioritized", "--bytes-max", "100")
    changed = node.run("queue", "change", "jobs", "--messages-max", "7", "--json").json
    assert changed["prioritized"]
    assert (changed["messages_max"], changed["bytes_max"]) == (7, 100)
    assert not node.run("queue", "change", "jobs", "--by-time", "--json").json["prioritized"]


def test_a_queue_that_is_off_keeps_its_messages_and_refuses_puts(node: CommandNode) -> None:
    node.run("put", "jobs", "--text", "one")
    assert "its messages are kept" in node.run("queue", "disable", "jobs").text
    refused = node.run("put", "jobs", "--text", "two")
    assert refused.code == ExitCode.REFUSED
    assert "oncemq queue enable" in refused.err
    node.run("queue", "enable", "jobs")
    assert node.run("queue", "status", "jobs", "--json").json["messages"] == 1


def test_messages_are_not_thrown_away_unasked(node: CommandNode) -> None:
    node.run("put", "jobs", "--text", "one")
    for arguments in (["purge"], ["delete", "--purge"]):
        unasked = node.run("queue", *arguments, "jobs")
        assert (unasked.code, "--yes" in unasked.err) == (ExitCode.USAGE, True)
    kept = node.run("queue", "delete", "jobs", "--yes")
    assert kept.code == ExitCode.REFUSED
    assert kept.err == "oncemq: jobs holds 1 message and was kept: get them, or add --purge\n"
    assert len(node.connection.queue("jobs")) == 1


def test_a_purge_says_how_many_it_removed_and_leaves_what_is_held(node: CommandNode) -> None:
    node.run("put", "jobs", "--text", "held", "--text", "one", "--text", "two")
    with node.connection.transaction() as tx:
        assert node.connection.queue("jobs").get(tx=tx) is not None
        purged = node.run("queue", "purge", "jobs", "--yes", "--json")
        assert purged.json == {"queue": "jobs", "removed": 2}
        tx.rollback()
    assert node.run("queue", "purge", "jobs", "--yes").text == "1 message is gone from jobs.\n"
    assert node.run("queue", "delete", "jobs", "--yes").text == "jobs is deleted.\n"
    assert node.run("queue", "list").text == ""


def test_a_queue_that_is_not_there_or_cannot_be_has_a_code_of_its_own(node: CommandNode) -> None:
    for command in ("status", "enable", "purge", "delete"):
        missing = node.run("queue", command, "nowhere")
        assert missing.code == ExitCode.NOT_FOUND, command
        assert "oncemq queue create" in missing.err
    assert node.run("queue", "create", "no/name").code == ExitCode.USAGE
