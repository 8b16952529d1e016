"""What a client makes ready for a node while it waits for others is what the node then hears."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from clients.branches import Branch
from idl import system
from idl.cos import Status
from idl.decider import mqVoter
from tests.unit.clients.lossy_node import AFTER, BEFORE, LossyHome

TWO = tuple([mqVoter(name, "PYRO:settler@127.0.0.1:1") for name in ("n2", "n3")])


@pytest.fixture
def home() -> Iterator[LossyHome]:
    made = LossyHome()
    yield made
    made.close()


def decider(home: LossyHome) -> Branch:
    branch = Branch(home.node(), home.deciding().leases.draw(), "n1", "")
    branch.put("orders", b"x")
    return branch


def voters_at(home: LossyHome) -> list[str]:
    """Those for whom the node has decided."""
    ((_, mark),) = home.server.decisions.waiting(math.inf, 10)
    return [voter.name for voter in mark.voters]


@pytest.mark.parametrize("prepared", [TWO, TWO[:1], ()])
def test_the_decision_names_those_who_have_voted_whoever_was_expected(
    home: LossyHome, prepared: tuple[mqVoter, ...]
) -> None:
    branch, settlement = decider(home), home.deciding().settlement
    branch.get_ready(settlement, TWO)
    assert "decide" not in home.orb.calls
    assert branch.decide(settlement, prepared) is Status.COMMITTED
    assert home.orb.calls.count("decide") == 1
    assert voters_at(home) == [voter.name for voter in prepared]


@pytest.mark.parametrize("fate", [BEFORE, AFTER])
def test_a_decision_that_was_ready_and_is_lost_is_asked_for_again(
    home: LossyHome, fate: str
) -> None:
    branch, settlement = decider(home), home.deciding().settlement
    home.plan("decide", fate)
    branch.get_ready(settlement, TWO)
    assert branch.decide(settlement, TWO) is Status.COMMITTED
    assert home.orb.calls.count("decide") == 2
    assert voters_at(home) == ["n2", "n3"]
    assert home.server.queues.info("orders").visible == 1


def test_what_is_wrong_with_a_decision_is_told_by_who_decides(
    home: LossyHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise system.IMP_LIMIT("too large")

    branch, settlement = decider(home), home.deciding().settlement
    monkeypatch.setattr(home.orb, "get_ready", refuse)
    monkeypatch.setattr(home.orb, "invoke", refuse)
    branch.get_ready(settlement, TWO)
    with pytest.raises(system.IMP_LIMIT):
        branch.decide(settlement, TWO)
