"""`oncemq put`, `get`, `browse` and `consume` against a node in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest

from clients.commands import message
from clients.commands.terminal import ExitCode
from clients.commands.written import StreamSink
from clients.errors import OutcomeUnknown, RolledBack
from clients.messages import Message
from clients.queue import Queue
from clients.transaction import Transaction
from tests.unit.clients.command_node import CommandNode, command_node


@pytest.fixture
def node(capsysbinary: pytest.CaptureFixture[bytes]) -> Iterator[CommandNode]:
    with command_node(capsysbinary) as made:
        yield made


def _payloads(node: CommandNode, queue: str) -> list[bytes]:
    return [message.payload for message in node.connection.queue(queue).browse()]


# --- put


def test_a_text_a_file_and_what_comes_in_are_one_message_each(
    node: CommandNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").write_bytes(b"\0binary\n")
    (tmp_path / "two").write_bytes(b"")
    put = node.run("put", "jobs", str(tmp_path / "one"), str(tmp_path / "two"))
    assert (put.code, put.text) == (ExitCode.OK, "2 messages put into jobs.\n")
    node.run("put", "jobs", "--text", "text")
    with (tmp_path / "one").open() as coming:
        monkeypatch.setattr("sys.stdin", coming)
        node.run("put", "jobs")
    assert _payloads(node, "jobs") == [b"\0binary\n", b"", b"text", b"\0binary\n"]


def test_every_line_is_a_message_with_what_was_said_for_all(
    node: CommandNode, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\n\nthree\r\nlast without end")
    options = ["--priority", "7", "--group", "2", "--attribute", "a=b=c", "--attribute", "a="]
    put = node.run("put", "jobs", "--lines", str(lines), *options, "--json")
    messages = list(node.connection.queue("jobs").browse())
    assert [each.payload for each in messages] == [b"one", b"", b"three\r", b"last without end"]
    assert {each.priority for each in messages} == {7}
    assert messages[0].attributes == (("a", "b=c"), ("a", ""))
    assert put.json == {
        "queue": "jobs",
        "messages": 4,
        "keys": [str(each.key) for each in messages],
    }


def test_what_got_wrote_can_be_put_again(node: CommandNode, tmp_path: Path) -> None:
    node.connection.queue("a").put(Message(b"\xff", 3, 4, (("x", "y"),)))
    node.connection.queue("a").put(b"text")
    (tmp_path / "kept").write_bytes(node.run("get", "a", "--all", "--jsonl").out)
    assert node.run("put", "b", "--jsonl", str(tmp_path / "kept")).code == ExitCode.OK
    first, second = node.connection.queue("b").browse()
    assert (first.payload, first.priority, first.group) == (b"\xff", 3, 4)
    assert (first.attributes, second.payload) == ((("x", "y"),), b"text")


def test_a_wrong_line_says_where_it_is_and_what_was_put_before(
    node: CommandNode, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b'{"payload": "1"}\n' * 5 + b"oops\n")
    put = node.run("put", "jobs", "--jsonl", str(lines))
    assert put.code == ExitCode.USAGE
    assert f"{lines}, line 6: no line of JSON" in put.err
    assert _payloads(node, "jobs") == []


def test_a_full_queue_keeps_the_batches_before(node: CommandNode, tmp_path: Path) -> None:
    node.run("queue", "create", "jobs", "--messages-max", "3")
    lines = tmp_path / "lines"
    lines.write_bytes(b"1\n2\n3\n4\n")
    put = node.run("put", "jobs", "--lines", "--batch", "2", str(lines), "--wait", "0.15")
    assert put.code == ExitCode.REFUSED
    assert "2 messages were put into jobs before this, and stay there; nothing after" in put.err
    assert _payloads(node, "jobs") == [b"1", b"2"]


def test_an_outcome_that_is_not_known_has_a_code_of_its_own(node: CommandNode) -> None:
    with mock.patch.object(Queue, "put_many", side_effect=OutcomeUnknown(b"", "lost")):
        put = node.run("put", "jobs", "--text", "one")
    assert put.code == ExitCode.OUTCOME_UNKNOWN
    assert "of the 1 after them it is not known" in put.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--text", "a", "file"],
        ["--jsonl", "--lines", "file"],
        ["--jsonl", "--priority", "3"],
        ["--attribute", "novalue", "--text", "a"],
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(
    node: CommandNode, arguments: list[str]
) -> None:
    assert node.run("put", "jobs", *arguments).code == ExitCode.USAGE


def test_a_file_that_is_not_there_is_named(node: CommandNode) -> None:
    put = node.run("put", "jobs", "no/such/file")
    assert (put.code, put.err) == (
        ExitCode.SYSTEM,
        "oncemq: no/such/file: No such file or directory\n",
    )


def test_lines_are_put_as_they_come() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        os.write(writing, b"one\ntw")
        lines = message._lines(stream)
        batches = message._batches(iter([next(lines), next(lines)]), 1000)
        assert list(batches) == [[b"one"]]
        os.write(writing, b"o\n")
        os.close(writing)
        assert list(message._batches(lines, 1000)) == [[b"two"]]


# --- get


def test_one_message_is_written_as_it_was_put(node: CommandNode) -> None:
    node.connection.queue("jobs").put_many([b"\xff no end", b"two", b"three\n"])
    assert node.run("get", "jobs").out == b"\xff no end"
    assert node.run("get", "jobs", "--count", "5").out == b"two\nthree\n"
    nothing = node.run("get", "jobs")
    assert (nothing.code, nothing.out) == (ExitCode.NOTHING_THERE, b"")
    assert nothing.err == "oncemq: there is nothing to get from jobs now\n"


def test_what_cannot_be_written_out_stays_in_the_queue(node: CommandNode) -> None:
    node.connection.queue("jobs").put(b"one")

    def fail(sink: StreamSink, messages: Sequence[Message]) -> None:
        raise OSError(28, "No space left on device")

    with mock.patch.object(StreamSink, "write", fail):
        got = node.run("get", "jobs")
    assert (got.code, got.err) == (ExitCode.SYSTEM, "oncemq: No space left on device\n")
    assert _payloads(node, "jobs") == [b"one"]


def test_it_is_written_out_before_it_is_taken(node: CommandNode) -> None:
    node.connection.queue("jobs").put(b"one")
    lost = RolledBack("the node was restarted")
    with mock.patch.object(Transaction, "commit", side_effect=lost):
        got = node.run("get", "jobs")
    assert (got.code, got.out) == (ExitCode.ROLLED_BACK, b"one")
    assert "nothing of it happened" in got.err


def test_files_appear_whole_and_under_their_key(node: CommandNode, tmp_path: Path) -> None:
    keys = node.connection.queue("jobs").put_many([b"one", b"two"])
    got = node.run("get", "jobs", "--all", "--batch", "1", "--output", str(tmp_path / "out"))
    assert (got.code, got.text) == (ExitCode.OK, f"2 messages written to {tmp_path / 'out'}.\n")
    found = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert found == {f"jobs-{keys[0]}": b"one", f"jobs-{keys[1]}": b"two"}


def test_a_message_is_got_by_its_key(node: CommandNode) -> None:
    keys = node.connection.queue("jobs").put_many([b"one", b"two"])
    assert node.run("get", "jobs", "--key", str(keys[1]).lstrip("0")).out == b"two"
    assert node.run("get", "jobs", "--key", "oops").code == ExitCode.USAGE
    again = node.run("get", "jobs", "--key", str(keys[1]))
    assert again.code == ExitCode.NOT_FOUND
    assert _payloads(node, "jobs") == [b"one"]


def test_only_a_group_is_got(node: CommandNode) -> None:
    node.connection.queue("jobs").put_many([Message(b"one", group=1), Message(b"two", group=2)])
    assert node.run("get", "jobs", "--group", "2").out == b"two"


# --- browse


def test_browsing_shows_and_leaves_everything(node: CommandNode) -> None:
    node.connection.queue("jobs").put_many([b"one\x1b[2J", Message(b"two", 3, 4)])
    first, second = node.run("browse", "jobs").text.splitlines()
    assert first.split("\t")[2:] == ["0", "0", "7", "one\\x1b[2J"]
    assert second.split("\t")[2:] == ["3", "4", "3", "two"]
    cut = node.run("browse", "jobs", "--limit", "1")
    assert (len(cut.text.splitlines()), "There are more" in cut.err) == (1, True)
    key = first.split("\t")[0]
    (behind,) = node.run("browse", "jobs", "--after", key, "--jsonl").text.splitlines()
    assert json.loads(behind)["payload"] == "two"
    assert len(node.run("browse", "jobs", "--json").json["messages"]) == 2
    assert node.run("browse", "jobs", "--key", key).out == b"one\x1b[2J"
    assert node.run("browse", "jobs", "--key", "12345").code == ExitCode.NOT_FOUND
    assert len(_payloads(node, "jobs")) == 2


# --- consume


def test_consuming_writes_each_message_and_stops_after_enough(node: CommandNode) -> None:
    node.connection.queue("jobs").put_many([b"one", b"two", b"three"])
    consumed = node.run("consume", "jobs", "--count", "2")
    assert (consumed.code, consumed.out) == (ExitCode.OK, b"one\ntwo\n")
    assert _payloads(node, "jobs") == [b"three"]
    assert node.run("consume", "jobs", "--wait", "0.01", "--jsonl").json["payload"] == "three"
    assert node.run("consume", "jobs", "--wait", "0.01").code == ExitCode.NOTHING_THERE


def test_a_message_that_nobody_reads_stays(node: CommandNode) -> None:
    node.connection.queue("jobs").put(b"one")
    with mock.patch.object(StreamSink, "write", side_effect=BrokenPipeError):
        assert node.run("consume", "jobs").code == ExitCode.PIPE_CLOSED
    assert _payloads(node, "jobs") == [b"one"]


def test_only_looking_shows_what_is_there_and_takes_nothing(node: CommandNode) -> None:
    keys = node.connection.queue("jobs").put_many([b"one", Message(b"two", group=5)])
    seen = node.run("consume", "jobs", "--browse", "--count", "2")
    assert seen.text == f"jobs\t{keys[0]}\t0\njobs\t{keys[1]}\t5\n"
    (event,) = node.run("consume", "jobs", "--browse", "--count", "1", "--jsonl").text.splitlines()
    assert json.loads(event) == {"queue": "jobs", "key": str(keys[0]), "group": 0}
    assert len(_payloads(node, "jobs")) == 2


def test_looking_and_running_a_command_do_not_go_together(node: CommandNode) -> None:
    assert node.run("consume", "jobs", "--browse", "--command", "true").code == ExitCode.USAGE
    assert node.run("consume", "jobs", "--group", "3").code == ExitCode.USAGE
