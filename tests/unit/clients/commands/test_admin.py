"""`oncemq admin` and `oncemq tx` against a node in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients.commands.terminal import ExitCode
from idl.mq import mqSelection
from tests.unit.clients.command_node import CommandNode, command_node


@pytest.fixture
def node(capsysbinary: pytest.CaptureFixture[bytes]) -> Iterator[CommandNode]:
    with command_node(capsysbinary) as made:
        yield made


def test_the_status_counts_what_a_node_holds_and_does(node: CommandNode) -> None:
    node.run("put", "jobs", "--text", "one", "--text", "two")
    with node.connection.transaction() as tx:
        node.connection.queue("jobs").get(tx=tx)
        found = node.run("admin", "status", "--json").json
        tx.rollback()
    own = "node address coordinator enabled message_bytes_max"
    assert " ".join(found) == f"{own} queues transactions consumers status"
    assert found["transactions"] == {"active": 1, "in_doubt": 0, "oldest_in_doubt_s": 0}
    assert [(queue["messages"], queue["held"]) for queue in found["queues"]] == [(1, 1)]
    shown = node.run("admin", "status").text
    assert "queues\t1 queue, 2 messages\n" in shown
    assert "transactions\t0 at work, 0 in doubt\n" in shown


def test_a_node_that_is_off_refuses_puts_and_says_so(node: CommandNode) -> None:
    assert "all messages are kept" in node.run("admin", "disable").text
    assert node.run("put", "jobs", "--text", "one").code == ExitCode.REFUSED
    assert "off: puts and gets are refused" in node.run("admin", "status").text
    assert node.run("admin", "enable").code == ExitCode.OK
    assert node.run("put", "jobs", "--text", "one").code == ExitCode.OK


def test_a_node_is_not_stopped_unasked(node: CommandNode) -> None:
    unasked = node.run("admin", "shutdown")
    assert (unasked.code, "--yes" in unasked.err) == (ExitCode.USAGE, True)


def reserve(node: CommandNode, consumer: str, count: int) -> int:
    """The consumer has reserved so many messages."""
    calls = node.connection.node().calls
    return calls.reserve(consumer, "jobs", mqSelection(0, 0, ()), 0, count, 0)


def test_consumers_are_listed_with_what_they_hold(node: CommandNode) -> None:
    assert node.run("admin", "consumers").text == ""
    node.run("put", "jobs", "--text", "one", "--text", "two")
    reserve(node, "etl@1f", 2)
    shown = node.run("admin", "consumers").text
    assert "etl@1f\tjobs\t2\t0s\n" in shown
    (view,) = node.run("admin", "consumers", "--json").json["consumers"]
    assert view == {"name": "etl@1f", "queue": "jobs", "reserved": 2, "age_s": 0}


@pytest.mark.parametrize("name", ["etl", "etl@1f"])
def test_a_consumer_is_dropped_when_that_was_meant(node: CommandNode, name: str) -> None:
    node.run("put", "jobs", "--text", "one", "--text", "two")
    reserve(node, "etl@1f", 2)
    unasked = node.run("admin", "drop-consumer", name)
    assert (unasked.code, "--yes" in unasked.err) == (ExitCode.USAGE, True)
    assert "2 messages given back" in node.run("admin", "drop-consumer", name, "--yes").text
    assert node.run("admin", "status", "--json").json["queues"][0]["messages"] == 2
    missing = node.run("admin", "drop-consumer", name, "--yes")
    assert missing.code == ExitCode.NOT_FOUND
