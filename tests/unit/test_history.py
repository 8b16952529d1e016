"""The judge of histories sees each planted fault, and says which transaction and message it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.history import Complaint, Left, judge
from tests.history_events import COMMITTED, ROLLED_BACK, UNKNOWN, Scribe, Seen, Transaction, read
from tests.history_order import Times, judge_order

DIGEST = 7
A, B = ("n1", "a"), ("n2", "b")


class Story:
    """Histories told by hand: one client after the other, each moment one tick later."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}
        self._ticks: Iterator[int] = iter(range(1, 10_000))
        self.now = 0

    def _tick(self) -> int:
        self.now = next(self._ticks)
        return self.now

    def client(self, name: str) -> Scribe:
        return Scribe(self.lines.setdefault(name, []).append, self._tick)

    def put(self, writer: str, name: str, *messages: str, where: tuple[str, str] = A) -> None:
        """A transaction that puts, and is committed."""
        client = self.client(writer)
        client.begin(name)
        for message in messages:
            client.put(name, *where, Seen(message, DIGEST))
        self.end(writer, name, COMMITTED)

    def take(
        self, reader: str, name: str, *messages: str, where: tuple[str, str] = A, count: int = 9
    ) -> None:
        """A transaction that has got messages, and has not ended."""
        client = self.client(reader)
        client.begin(name)
        client.getting(name, *where, count)
        client.got(name, [Seen(message, DIGEST) for message in messages])

    def end(self, who: str, name: str, outcome: str) -> None:
        """The transaction is asked to commit, or to roll back, and this is the answer."""
        client = self.client(who)
        if outcome != ROLLED_BACK:
            client.ending(name)
        client.end(name, outcome)

    def transactions(self) -> list[Transaction]:
        return [each for who, lines in self.lines.items() for each in read(who, lines)]

    def judged(self, left: Left, times: Times | None = None) -> list[Complaint]:
        order = judge_order(self.transactions(), left, times or Times())
        return judge(self.transactions(), left) + order.complaints


def left(**queues: str) -> Left:
    """What is in the queues, as words."""
    return Left({name: [Seen(m, DIGEST) for m in text.split()] for name, text in queues.items()})


def told(complaints: list[Complaint]) -> list[tuple[str, str, str]]:
    return [each[:3] for each in complaints]


@pytest.fixture
def story() -> Story:
    return Story()


def move(story: Story, outcome: str, *moved: str) -> None:
    """A transaction over two nodes: x from a on n1, as these messages to b on n2."""
    story.put("w", "put", "x")
    story.take("m", "move", "x")
    for message in moved:
        story.client("m").put("move", *B, Seen(message, DIGEST))
    story.end("m", "move", outcome)


# --- Sound histories -----------------------------------------------------------------------------


def test_what_was_put_and_not_got_is_there(story: Story) -> None:
    story.put("w", "t1", "x", "y")
    assert story.judged(left(a="x y")) == []


def test_what_was_got_by_a_committed_transaction_is_gone(story: Story) -> None:
    move(story, COMMITTED, "y")
    assert story.judged(left(a="", b="y")) == []


def test_a_rolled_back_get_may_be_got_again(story: Story) -> None:
    story.put("w", "t1", "x")
    story.take("r", "t2", "x")
    story.end("r", "t2", ROLLED_BACK)
    story.take("s", "t3", "x")
    story.end("s", "t3", COMMITTED)
    assert story.judged(left(a="")) == []


@pytest.mark.parametrize("ends", [left(a="", b="y z"), left(a="x", b="")], ids=["yes", "no"])
def test_an_unknown_transaction_may_have_happened_or_not(story: Story, ends: Left) -> None:
    move(story, UNKNOWN, "y", "z")
    assert story.judged(ends) == []


def test_of_two_unknown_readers_the_later_one_has_the_message(story: Story) -> None:
    story.put("w", "t1", "x", "y")
    story.take("r", "t2", "x", "y")
    story.end("r", "t2", UNKNOWN)
    story.take("s", "t3", "x", "y")
    story.end("s", "t3", UNKNOWN)
    assert story.judged(left(a="")) == []


def test_of_two_unknown_readers_that_overlap_either_may_have_it(story: Story) -> None:
    story.put("w", "t1", "x")
    readers = {name: story.client(name) for name in ("r", "s")}
    for name, reader in readers.items():
        reader.begin(name)
        reader.getting(name, *A, 1)
    for name, reader in readers.items():
        reader.got(name, [Seen("x", DIGEST)])
        reader.ending(name)
    assert story.judged(left(a="")) == []


def test_a_client_killed_while_it_wrote_leaves_a_history_that_is_read(story: Story) -> None:
    story.put("w", "t1", "x")
    story.client("w").begin("t2")
    story.lines["w"].append('{"do": "put", "tx": "t2", "at": 1')
    assert [each.name for each in story.transactions()] == ["t1", "t2"]
    assert story.judged(left(a="x")) == []


# --- Planted faults ------------------------------------------------------------------------------


def test_a_lost_message_is_seen(story: Story) -> None:
    story.put("w", "t1", "x", "y")
    [found] = story.judged(left(a="y"))
    assert found[:3] == ("lost", "t1", "x")
    assert str(found).startswith("lost: transaction t1, message x: put into a, committed")


def test_a_message_that_is_there_twice_is_seen(story: Story) -> None:
    story.put("w", "t1", "x")
    assert told(story.judged(left(a="x x"))) == [("duplicate", "t1", "x")]


def test_a_message_got_by_two_committed_transactions_is_seen(story: Story) -> None:
    story.put("w", "t1", "x")
    for reader in ("r", "s"):
        story.take(reader, reader, "x")
    for reader in ("r", "s"):
        story.end(reader, reader, COMMITTED)
    assert told(story.judged(left(a=""))) == [("duplicate", "s", "x")]


def test_a_message_that_is_back_after_its_commit_is_seen(story: Story) -> None:
    move(story, COMMITTED, "y")
    assert told(story.judged(left(a="x", b="y"))) == [("resurrected", "move", "x")]


def test_a_message_got_again_after_it_was_consumed_is_seen(story: Story) -> None:
    move(story, COMMITTED, "y")
    story.take("r", "t3", "x")
    story.end("r", "t3", ROLLED_BACK)
    assert told(story.judged(left(a="", b="y"))) == [("resurrected", "t3", "x")]


@pytest.mark.parametrize(
    ("ends", "about"),
    [
        (left(a="", b="y"), ("half", "move", "z")),
        (left(a="x", b="y z"), ("half", "move", "x")),
        (left(a="", b=""), ("half", "move", "x")),
    ],
    ids=["one of its puts is missing", "its get did not happen", "its puts did not happen"],
)
def test_half_of_an_unknown_transaction_is_seen(
    story: Story, ends: Left, about: tuple[str, str, str]
) -> None:
    move(story, UNKNOWN, "y", "z")
    assert told(story.judged(ends)) == [about]


def test_half_of_a_transaction_that_only_got_is_seen(story: Story) -> None:
    story.put("w", "t1", "x", "y")
    story.take("r", "t2", "x", "y")
    story.end("r", "t2", UNKNOWN)
    assert told(story.judged(left(a="y"))) == [("half", "t2", "x")]


def test_a_message_of_a_rolled_back_transaction_is_seen(story: Story) -> None:
    move(story, ROLLED_BACK, "y")
    assert told(story.judged(left(a="x", b="y"))) == [("rolled back", "move", "y")]


def test_a_message_of_a_client_killed_before_the_end_is_seen(story: Story) -> None:
    story.client("w").begin("t1")
    story.client("w").put("t1", *A, Seen("x", DIGEST))
    assert told(story.judged(left(a="x"))) == [("rolled back", "t1", "x")]


def test_a_message_got_before_its_transaction_ended_is_seen(story: Story) -> None:
    story.client("w").begin("t1")
    story.client("w").put("t1", *A, Seen("x", DIGEST))
    story.take("r", "t2", "x")
    story.end("w", "t1", COMMITTED)
    story.end("r", "t2", COMMITTED)
    assert told(story.judged(left(a=""))) == [("dirty", "t1", "x")]


def test_an_altered_message_is_seen(story: Story) -> None:
    story.put("w", "t1", "x")
    assert told(story.judged(Left({"a": [Seen("x", 8)]}))) == [("altered", "t1", "x")]


def test_a_message_that_nobody_put_is_seen(story: Story) -> None:
    story.take("r", "t1", "x")
    assert told(story.judged(left(a=""))) == [("phantom", "t1", "x")]


def test_a_message_in_another_queue_is_seen(story: Story) -> None:
    story.put("w", "t1", "x")
    assert told(story.judged(left(a="", b="x"))) == [("misrouted", "t1", "x")]


def test_what_has_not_come_to_rest_is_seen() -> None:
    rest = Left({}, locked={"a": 2, "b": 0}, branches=["b1"], undecided=["t1"])
    texts = [complaint.text for complaint in judge([], rest)]
    assert texts == [
        "2 messages of a are locked",
        "branch b1 has not ended",
        "the coordinator still knows t1",
    ]


# --- Order ---------------------------------------------------------------------------------------


def test_a_queue_out_of_order_is_seen(story: Story) -> None:
    story.put("w", "t1", "x", "y")
    assert told(story.judged(left(a="y x"))) == [("order", "t1", "x")]


def test_an_answer_out_of_order_is_seen(story: Story) -> None:
    story.put("w", "t1", "x")
    story.put("w", "t2", "y")
    story.take("r", "t3", "y", "x")
    story.end("r", "t3", COMMITTED)
    assert told(story.judged(left(a=""))) == [("order", "t1", "x")]


def test_messages_of_two_writers_have_no_order(story: Story) -> None:
    story.put("w", "t1", "x")
    story.put("v", "t2", "y")
    assert story.judged(left(a="y x")) == []


def test_a_message_that_was_passed_over_is_seen(story: Story) -> None:
    story.put("w", "t1", "x")
    story.put("w", "t2", "y")
    story.take("r", "t3", "y", count=1)
    story.end("r", "t3", COMMITTED)
    assert told(story.judged(left(a="x"))) == [("passed over", "t1", "x")]


def test_what_another_holds_may_be_passed_over(story: Story) -> None:
    story.put("w", "t1", "x")
    story.put("w", "t2", "y")
    story.take("s", "t4", "x", count=1)
    story.take("r", "t3", "y", count=1)
    story.end("r", "t3", COMMITTED)
    story.end("s", "t4", ROLLED_BACK)
    assert story.judged(left(a="x")) == []


def test_what_was_committed_in_two_phases_may_come_later(story: Story) -> None:
    move(story, COMMITTED, "y")
    story.put("m", "t2", "z", where=B)
    story.take("r", "t3", "z", where=B, count=1)
    story.end("r", "t3", COMMITTED)
    assert story.judged(left(a="", b="y")) == []


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (Times(), []),
        (Times(deaths={"s": 12}), []),
        (Times(deaths={"s": 12}, restarts={"n1": [11, 13]}), [("passed over", "t1", "x")]),
        (Times(deaths={"s": 12}, restarts={"n2": [13]}), []),
        (Times(deaths={"s": 12}, release_ns=1), [("passed over", "t1", "x")]),
    ],
    ids=["running", "killed", "node restarted since", "another restarted", "given up since"],
)
def test_who_was_not_answered_may_hold_one_until_it_is_given_up(
    story: Story, times: Times, expected: list[tuple[str, str, str]]
) -> None:
    story.put("w", "t1", "x")
    story.put("w", "t2", "y")
    story.client("s").begin("t4")
    story.client("s").getting("t4", *A, 1)
    while story.now < 15:
        story.client("s").begin(f"nothing {story.now}")
    story.take("r", "t3", "y", count=1)
    story.end("r", "t3", COMMITTED)
    assert told(story.judged(left(a="x"), times)) == expected


@pytest.mark.parametrize(
    ("restarts", "expected"),
    [
        ({"n1": [20]}, []),
        ({"n1": [3, 20, 99]}, []),
        ({}, [("passed over", "t1", "x")]),
        ({"n2": [20]}, [("passed over", "t1", "x")]),
        ({"n1": [3, 99]}, [("passed over", "t1", "x")]),
        ({"n1": [13]}, [("passed over", "t1", "x")]),
    ],
    ids=["after it", "among others", "never", "another node", "before and after", "before it"],
)
def test_who_asked_again_after_a_restart_may_have_held_others_until_then(
    story: Story, restarts: dict[str, list[int]], expected: list[tuple[str, str, str]]
) -> None:
    for name, message in (("t1", "x"), ("t2", "y"), ("t3", "z")):
        story.put("w", name, message)
    story.client("s").begin("t4")
    story.client("s").getting("t4", *A, 1)
    story.take("r", "t5", "y", count=1)
    story.end("r", "t5", COMMITTED)
    while story.now < 25:
        story.client("r").begin(f"nothing {story.now}")
    story.take("r", "t6", "x", count=1)
    story.end("r", "t6", COMMITTED)
    story.client("s").got("t4", [Seen("z", DIGEST)])
    story.end("s", "t4", COMMITTED)
    assert told(story.judged(left(a=""), Times(restarts=restarts))) == expected
