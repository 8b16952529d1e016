"""Transactions that are shared by name: begun, joined, decided, given up, and asked about again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import oncemq
from clients.spark import sharing
from clients.spark.attempts import Attempt, branch_name
from idl import system
from idl.cos import Status
from tests.unit.clients.spark.test_attempts import payloads, some


@pytest.fixture
def connection() -> Iterator[oncemq.Connection]:
    with oncemq.connect("memory:") as made:
        yield made


def test_who_asks_for_the_same_key_joins(connection: oncemq.Connection) -> None:
    first = sharing.begin(connection, 60.0, "app", 1)
    second = sharing.begin(connection, 60.0, "app", 1)

    assert not first.is_joined
    assert second == sharing.Begun(first.gtrid, False, True)
    sharing.give_up(connection, first.gtrid)


def test_a_version_that_was_committed_is_not_begun_again(connection: oncemq.Connection) -> None:
    sharing.decide(connection, sharing.begin(connection, 60.0, "app", 5).gtrid, ())

    assert sharing.begin(connection, 60.0, "app", 5).is_committed
    assert sharing.begin(connection, 60.0, "app", 4).is_committed
    assert sharing.last_version(connection, "app") == 5
    assert not sharing.begin(connection, 60.0, "app", 6).is_committed


def test_a_run_takes_the_place_of_one_that_died(
    connection: oncemq.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    dead = sharing.begin(connection, 60.0, "app", 1)
    left = Attempt(connection, dead.gtrid, branch_name(0, 0, 0))
    left.put("q", some(b"dead"))

    alive = sharing.begin_alone(connection, 60.0, "app", 1)

    assert alive.gtrid != dead.gtrid
    assert "being written by another run" in caplog.text
    with pytest.raises(oncemq.RolledBack):
        sharing.decide(connection, dead.gtrid, left.finish())
    sharing.decide(connection, alive.gtrid, ())
    assert payloads(connection, "q") == []


def test_a_decision_may_be_asked_for_again(connection: oncemq.Connection) -> None:
    gtrid = sharing.begin(connection, 60.0).gtrid
    attempt = Attempt(connection, gtrid, branch_name(0, 0, 0))
    attempt.put("q", some(b"1"))
    votes = attempt.finish()

    sharing.decide(connection, gtrid, votes)
    sharing.decide(connection, gtrid, votes)

    assert payloads(connection, "q") == [b"1"]


def test_a_decision_with_other_branches_says_that_another_was_first(
    connection: oncemq.Connection,
) -> None:
    gtrid = sharing.begin(connection, 60.0).gtrid
    first, second = (Attempt(connection, gtrid, branch_name(0, 0, 0)) for _ in range(2))
    first.put("q", some(b"first"))
    second.put("q", some(b"second"))
    votes = second.finish()
    sharing.decide(connection, gtrid, first.finish())

    with pytest.raises(sharing.CommittedByAnother, match="nothing of this one was kept"):
        sharing.decide(connection, gtrid, votes)
    assert payloads(connection, "q") == [b"first"]


def test_what_was_committed_is_not_given_up(connection: oncemq.Connection) -> None:
    gtrid = sharing.begin(connection, 60.0).gtrid
    sharing.decide(connection, gtrid, ())
    assert sharing.give_up(connection, gtrid) is oncemq.Outcome.COMMITTED


def test_what_was_given_up_cannot_be_decided(connection: oncemq.Connection) -> None:
    gtrid = sharing.begin(connection, 60.0).gtrid
    assert sharing.give_up(connection, gtrid) is oncemq.Outcome.ROLLED_BACK
    with pytest.raises(oncemq.RolledBack, match=r"transaction .*-"):
        sharing.decide(connection, gtrid, ())


def test_a_node_that_restarts_is_waited_for_but_not_for_ever(
    connection: oncemq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = connection.node()
    answers = iter([False, False, True])

    class Restarting:
        """A node that is there at the third call."""

        def getNode(self) -> str:
            if next(answers, False):
                return "here"
            raise system.TRANSIENT("cannot reach it")

    waited: list[float] = []
    monkeypatch.setattr(node, "calls", Restarting())
    monkeypatch.setattr(node, "clock", lambda: sum(waited))
    monkeypatch.setattr(node, "sleep", waited.append)

    sharing.wait_for_node(connection)
    assert len(waited) == 2
    with pytest.raises(oncemq.ConnectionLost, match="cannot reach it"):
        sharing.wait_for_node(connection)
    assert sum(waited) <= sharing.BEGIN_S + 1


def test_a_commit_that_is_still_carried_out_is_waited_for(
    connection: oncemq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = connection.node()
    gtrid = sharing.begin(connection, 60.0).gtrid
    branch = sharing.PreparedBranch(str(node.address), "b.1")
    answers = iter([Status.PREPARED, None, Status.PREPARED, Status.COMMITTED])
    waited: list[float] = []

    class Slow:
        """A node that is busy once, has carried it out at the fourth call, and then never again."""

        def getOutcome(self, otid: object) -> Status:
            answer = next(answers, Status.PREPARED)
            if answer is None:
                raise system.TIMEOUT("no answer in time", system.Completion.MAYBE)
            return answer

    monkeypatch.setattr(node, "calls", Slow())
    monkeypatch.setattr(node, "clock", lambda: sum(waited))
    monkeypatch.setattr(node, "sleep", waited.append)

    sharing.wait_until_there(connection, gtrid, [branch])
    assert len(waited) == 3
    sharing.wait_until_there(connection, gtrid, [branch])
    assert sharing.THERE_S <= sum(waited) <= sharing.THERE_S + 1


@pytest.mark.parametrize("url", ["memory:", "file:./data", "FILE:/data"])
def test_an_embedded_node_is_refused(url: str) -> None:
    with pytest.raises(sharing.EmbeddedUrl, match="Spark works in many: run a server"):
        sharing.connection_to(url)


def test_a_process_has_one_connection_to_a_node() -> None:
    first = sharing.connection_to("mq://127.0.0.1:1")
    assert sharing.connection_to("mq://127.0.0.1:1") is first
    assert sharing.connection_to("mq://127.0.0.1:2") is not first
