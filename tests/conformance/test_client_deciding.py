"""Transactions that a node decides: whoever dies or is late, both nodes end the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

import oncemq
from clients.branches import Branch
from clients.deciding import Deciding
from idl import system
from idl.cos import HeuristicMixed, Status
from idl.decider import DECIDER, Mq_Decider
from idl.mq import mqQueueSettings
from idl.otids import GTRID_BYTES, otid_of, parse_shown
from oncemq import Connection, Outcome
from tests.conformance.client_places import Place, place

WAIT_S = 15.0


class Gone(BaseException):
    """The owner has died: it does nothing after this."""


def die(*arguments: object, **named: object) -> NoReturn:
    raise Gone


def died_after(step: Callable[..., Any]) -> Callable[..., NoReturn]:
    def last(*arguments: Any, **named: Any) -> NoReturn:
        step(*arguments, **named)
        raise Gone

    return last


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place("mq", tmp_path_factory.mktemp("data")) as found:
        yield found


@pytest.fixture
def near(here: Place) -> Iterator[Connection]:
    with oncemq.connect(here.url, timeout=10.0) as connection:
        yield connection


@pytest.fixture
def far(here: Place) -> Iterator[Connection]:
    assert here.far_url is not None
    with oncemq.connect(here.far_url, timeout=10.0) as connection:
        yield connection


def emptied(connection: Connection, name: str) -> list[bytes]:
    return [message.payload for message in connection.queue(name).get_many(1000)]


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


def in_doubt(connection: Connection) -> list[str]:
    found = connection.admin().listBranches()
    return [each.otid.tid.hex() for each in found if each.state is Status.PREPARED]


def both(near: Connection, far: Connection, name: str) -> oncemq.Transaction:
    """A message to each of two nodes; the first decides, since it is the transaction's own."""
    tx = near.begin()
    near.queue(name).put(b"here", tx=tx)
    far.queue(name).put(b"there", tx=tx)
    return tx


def test_three_calls_end_a_transaction_over_two_nodes(
    near: Connection, far: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(near, far, "warm").commit()
    steps: list[str] = []
    for name in ("prepare", "vote", "decide", "end_voter", "commit_alone", "rollback"):
        step = getattr(Branch, name)

        def noted(*arguments: Any, _name: str = name, _step: Any = step) -> Any:
            steps.append(_name)
            return _step(*arguments)

        monkeypatch.setattr(Branch, name, noted)
    tx = both(near, far, "three")
    tx.commit()
    assert steps == ["vote", "decide", "end_voter"]
    assert (emptied(near, "three"), emptied(far, "three")) == ([b"here"], [b"there"])
    assert near.outcome(tx.otid) is far.outcome(tx.otid) is Outcome.COMMITTED


@pytest.mark.parametrize("answer", [False, system.OBJECT_NOT_EXIST("an earlier version")])
def test_where_a_node_cannot_be_asked_the_coordinator_decides(
    here: Place, far: Connection, monkeypatch: pytest.MonkeyPatch, answer: bool | Exception
) -> None:
    asked: list[str] = []

    class Relay:
        def isWithinReach(self, place: str) -> bool:
            asked.append(place)
            if isinstance(answer, Exception):
                raise answer
            return answer

    with oncemq.connect(here.url) as owner:
        owner.deciding().settlement = Relay()  # type: ignore[assignment]
        monkeypatch.setattr(Branch, "decide", die)
        for _ in range(2):
            both(owner, far, "coordinated").commit()
        # It is not asked again at once.
        assert len(asked) == 1
        assert len(emptied(owner, "coordinated")) == len(emptied(far, "coordinated")) == 2


def test_an_owner_that_dies_before_the_decision_leaves_nothing(
    here: Place, near: Connection, far: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = oncemq.connect(here.url)
    tx = both(owner, far, "early")
    with monkeypatch.context() as patch:
        patch.setattr(Branch, "decide", die)
        with pytest.raises(Gone):
            tx.commit()
    assert len(in_doubt(far)) == 1
    # Its session ends, and then it is presumed to be rolled back: a fence says so.
    owner.close()
    eventually(lambda: not in_doubt(far))
    assert (emptied(near, "early"), emptied(far, "early")) == ([], [])


def test_an_owner_that_decides_behind_a_fence_is_refused(
    here: Place, far: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = Branch.decide

    def late(branch: Branch, *arguments: Any) -> Status:
        owner._deciding.leases.close()  # type: ignore[union-attr]
        eventually(lambda: not in_doubt(far))
        return decide(branch, *arguments)

    owner = oncemq.connect(here.url, timeout=10.0)
    tx = both(owner, far, "late")
    with monkeypatch.context() as patch:
        patch.setattr(Branch, "decide", late)
        with pytest.raises(oncemq.RolledBack, match="given it up"):
            tx.commit()
    assert tx.status is Outcome.ROLLED_BACK
    assert (emptied(owner, "late"), emptied(far, "late")) == ([], [])
    owner.close()


@pytest.mark.parametrize(
    ("step", "dying"),
    [("decide", died_after(Branch.decide)), ("end_voter", die)],
)
def test_an_owner_that_dies_after_the_decision_is_finished_for(
    here: Place,
    near: Connection,
    far: Connection,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    dying: Callable[..., Any],
) -> None:
    owner = oncemq.connect(here.url)
    tx = both(owner, far, f"after.{step}")
    with monkeypatch.context() as patch:
        patch.setattr(Branch, step, dying)
        with pytest.raises(Gone):
            tx.commit()
    eventually(lambda: not in_doubt(far))
    owner.close()
    assert emptied(near, f"after.{step}") == [b"here"]
    assert emptied(far, f"after.{step}") == [b"there"]


def lost(
    completed: system.Completion, step: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Instead of the call that decides: it may have arrived, and nobody answers."""

    def fail(*arguments: Any) -> NoReturn:
        if step is not None:
            step(*arguments)
        raise system.COMM_FAILURE("cut", completed)

    return fail


@pytest.mark.parametrize("has_arrived", [False, True])
def test_an_answer_that_is_lost_is_found_out(
    near: Connection, far: Connection, monkeypatch: pytest.MonkeyPatch, has_arrived: bool
) -> None:
    name = f"lost.{has_arrived}"
    tx = both(near, far, name)
    step = Branch.decide if has_arrived else None
    with monkeypatch.context() as patch:
        patch.setattr(Branch, "decide", lost(system.Completion.MAYBE, step))
        if has_arrived:
            tx.commit()
        else:
            with pytest.raises(oncemq.RolledBack):
                tx.commit()
    eventually(lambda: not in_doubt(far))
    assert emptied(near, name) == ([b"here"] if has_arrived else [])
    assert emptied(far, name) == ([b"there"] if has_arrived else [])


def test_what_cannot_be_found_out_is_unknown_and_told_later(
    near: Connection, far: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = both(near, far, "unknown")
    with monkeypatch.context() as patch:
        patch.setattr(Branch, "decide", lost(system.Completion.MAYBE))
        patch.setattr(Deciding, "decide_marked", lost(system.Completion.MAYBE))
        with pytest.raises(oncemq.OutcomeUnknown) as told:
            tx.commit()
    assert told.value.otid == tx.otid
    assert near.outcome(tx.otid) is Outcome.ROLLED_BACK
    eventually(lambda: not in_doubt(far))
    assert (emptied(near, "unknown"), emptied(far, "unknown")) == ([], [])


def test_a_decider_that_refuses_lets_the_others_go_at_once(
    near: Connection, far: Connection
) -> None:
    near.admin().createQueue("tight", mqQueueSettings(True, False, 1, 0))
    near.queue("tight").put(b"full")
    far.queue("held").put(b"old")
    tx = near.begin()
    assert far.queue("held").get(tx=tx) is not None
    near.queue("tight").put(b"too much", tx=tx)
    with pytest.raises(oncemq.RolledBack, match="limit 1"):
        tx.commit()
    assert emptied(far, "held") == [b"old"]
    assert emptied(near, "tight") == [b"full"]


def test_a_vote_against_it_lets_the_others_go_at_once(here: Place, near: Connection) -> None:
    assert here.far_url is not None
    with oncemq.connect(here.far_url) as far:
        far.admin().createQueue("slim", mqQueueSettings(True, False, 1, 0))
        far.queue("slim").put(b"full")
        near.queue("kept").put(b"old")
        tx = near.begin()
        assert near.queue("kept").get(tx=tx) is not None
        far.queue("slim").put(b"too much", tx=tx)
        with pytest.raises(oncemq.RolledBack, match="limit 1"):
            tx.commit()
        assert emptied(near, "kept") == [b"old"]


def test_a_voter_that_was_ended_by_hand_is_told_as_damage(
    near: Connection, far: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = Branch.decide

    def after_an_operator(branch: Branch, *arguments: Any) -> Status:
        [info] = [each for each in far.admin().listBranches() if each.state is Status.PREPARED]
        far.admin().decideBranch(info.otid, False)
        return decide(branch, *arguments)

    tx = both(near, far, "hand")
    with monkeypatch.context() as patch:
        patch.setattr(Branch, "decide", after_an_operator)
        with pytest.raises(HeuristicMixed):
            tx.commit()
    assert tx.status is Outcome.UNKNOWN
    assert (emptied(near, "hand"), emptied(far, "hand")) == ([b"here"], [])


def test_decisions_are_forgotten_when_everybody_has_ended(
    near: Connection, far: Connection
) -> None:
    tx = both(near, far, "forgotten")
    tx.commit()
    node = near.node()
    decider = node.orb.proxy(f"PYRO:{DECIDER}@{node.address}", Mq_Decider)
    otid = otid_of(parse_shown(tx.otid))
    assert decider.getDecision(otid) is Status.COMMITTED
    eventually(lambda: decider.getDecision(otid) is Status.NO_TRANSACTION)
    # A transaction that was never heard of here can still be decided nowhere else.
    assert decider.fence(otid_of(bytes(GTRID_BYTES))) is Status.ROLLED_BACK
