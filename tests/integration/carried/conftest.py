"""A node, its coordinator, and a database that carries what is put there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import oncemq
from clients import commitment
from clients.two_phase import DatabaseBranch
from mqserver.transactions.custodian import CarryingTimes
from tests.conformance.client_places import SETTINGS, running_coordinator, running_node
from tests.integration.carried.carried_work import Side, act, delete
from tests.integration.enlisting import File, Rows, eventually


@pytest.fixture
def mq() -> Iterator[oncemq.Connection]:
    """A node and its coordinator, which look after what is carried soon."""
    carrying = CarryingTimes(after_s=0.2, again_s=0.1, look_s=0.2, age_s=0.1)
    settings = replace(SETTINGS, carrying=carrying)
    with (
        running_coordinator() as coordinator,
        running_node("near", coordinator, settings) as near,
        oncemq.connect(f"mq://{near}") as made,
    ):
        yield made


@pytest.fixture(params=["postgresql", "sqlite"])
def side(request: pytest.FixtureRequest, mq: oncemq.Connection, tmp_path: Path) -> Iterator[Side]:
    """A table in a database that carries, which node and coordinator know of by now."""
    made: Side
    if request.param == "sqlite":
        made = File(tmp_path / "stock.db")
        made.register(mq)
    else:
        made = Rows(request.getfixturevalue("server"))
        made.register(mq)
    yield made
    if isinstance(made, Rows):
        made.cluster.disconnect(made.schema)
        assert made.prepared() == 0


@pytest.fixture
def conn(side: Side) -> Iterator[Any]:
    with closing(side.connect()) as made:
        yield made


@pytest.fixture
def carrying(
    mq: oncemq.Connection, side: Side, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """From here on puts are carried; and the list of those that were."""
    monkeypatch.setattr(commitment, "REFUSED_S", 0.02)
    carried: list[str] = []
    step = DatabaseBranch.commit_carrying

    def noted(self: DatabaseBranch, node: str, content: bytes) -> None:
        carried.append(self.gtrid.hex())
        step(self, node, content)

    monkeypatch.setattr(DatabaseBranch, "commit_carrying", noted)

    def once() -> None:
        act(mq, conn, "warm").commit()

    eventually(lambda: bool(carried), "a database carries", once)
    mq.queue("q").get_many(10_000)
    delete(side, "warm")
    carried.clear()
    return carried


@pytest.fixture(params=["puts", "a get as well"])
def is_getting(request: pytest.FixtureRequest) -> bool:
    """Whether a message is got besides, so that the node has to prepare."""
    return bool(request.param != "puts")
