"""Clients of a peer that hangs, or fails, are given up with a reason, and nobody waits for them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import team
from benchmarks.peers.operations import Operation
from benchmarks.peers.systems import BY_NAME, LIMIT
from benchmarks.peers.team import Broken, Team
from benchmarks.peers.workloads import Workload

CLIENTS = 2
BUDGET_S = 0.2
END_S = 10.0

Children = Callable[[], list[psutil.Process]]


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def children() -> Children:
    """The processes that were started since; other tests may have left servers that serve on."""
    before = set(psutil.Process().children(recursive=True))

    def started() -> list[psutil.Process]:
        return [each for each in psutil.Process().children(recursive=True) if each not in before]

    return started


@pytest.fixture
def clients(children: object, silent: socket.socket, tmp_path: Path) -> Iterator[Team]:
    """Connected to it."""
    host, port = silent.getsockname()
    work = Workload("W3", Operation.PUT, 5, clients=CLIENTS)
    with closing(Team(work, BY_NAME[LIMIT], f"{host}:{port} {tmp_path}")) as started:
        started.await_ready()
        yield started


def test_clients_of_a_server_that_never_answers_are_ended_and_told_as_too_slow(
    clients: Team, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team, "LATE_S_MAX", 1.0)
    assert len(children()) >= 1 + CLIENTS
    began = time.monotonic()
    with pytest.raises(Broken, match="too slow: no answer in 1 s"):
        clients.take_turn(BUDGET_S)
    assert time.monotonic() - began < END_S
    assert psutil.wait_procs(children(), END_S)[1] == []


def test_a_client_that_fails_ends_the_others_and_is_told_with_its_last_word(
    clients: Team, children: Children, silent: socket.socket
) -> None:
    # The connection of whoever empties the queue, and of the client that came first: either of
    # them, while the other one waits for its answer.
    for _ in range(2):
        silent.accept()[0].close()
    with pytest.raises(Broken, match=r"Connection.*Error: "):
        clients.take_turn(BUDGET_S)
    assert psutil.wait_procs(children(), END_S)[1] == []


def test_a_server_that_is_not_there_is_told_as_broken(tmp_path: Path) -> None:
    work = Workload("W1", Operation.PUT, 5)
    with (
        closing(Team(work, BY_NAME[LIMIT], f"127.0.0.1:1 {tmp_path}")) as started,
        pytest.raises(Broken, match="ConnectionRefusedError"),
    ):
        started.await_ready()
