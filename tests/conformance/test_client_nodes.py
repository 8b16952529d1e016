"""Transactions over several nodes, and nodes and coordinators that go away and come back."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import oncemq
from clients.branches import Branch
from idl import system
from idl.mq import mqQueueSettings
from mqserver.storage.memory import MemoryStorage
from oncemq import Connection, Outcome
from tests.conformance.client_places import (
    Place,
    place,
    running_coordinator,
    running_node,
)


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


# --- Several nodes


def test_a_transaction_over_two_nodes_happens_at_both(near: Connection, far: Connection) -> None:
    with near.transaction() as tx:
        near_key = near.queue("both").put(b"here", tx=tx)
        far_key = far.queue("both").put(b"there", tx=tx)
    assert emptied(near, "both") == [b"here"]
    assert emptied(far, "both") == [b"there"]
    assert str(near_key)
    assert str(far_key)
    assert near.outcome(tx.otid) == far.outcome(tx.otid) == "committed"


def test_calls_to_another_node_join_the_current_transaction(
    near: Connection, far: Connection
) -> None:
    far.queue("joined").put(b"there")
    with contextlib.suppress(ZeroDivisionError), near.transaction():
        near.queue("joined").put(b"here")
        assert far.queue("joined").get() is not None
        raise ZeroDivisionError
    assert emptied(near, "joined") == []
    assert emptied(far, "joined") == [b"there"]


def test_a_message_moves_from_node_to_node(near: Connection, far: Connection) -> None:
    near.queue("from").put_many([b"1", b"2", b"3"])
    for _ in range(3):
        with near.transaction():
            message = near.queue("from").get()
            assert message is not None
            far.queue("to").put(message.payload)
    assert emptied(near, "from") == []
    assert emptied(far, "to") == [b"1", b"2", b"3"]


def test_what_one_node_refuses_happens_at_none(near: Connection, far: Connection) -> None:
    far.admin().createQueue("narrow", mqQueueSettings(True, False, 1, 0))
    far.queue("narrow").put(b"full")
    near.queue("wide").put(b"old")
    tx = near.begin()
    assert near.queue("wide").get(tx=tx) is not None
    near.queue("wide").put(b"new", tx=tx)
    far.queue("narrow").put(b"too much", tx=tx)
    with pytest.raises(oncemq.RolledBack, match="limit 1") as told:
        tx.commit()
    assert told.value.retryable
    assert emptied(far, "narrow") == [b"full"]
    # Whoever had voted for it was told at once.
    assert emptied(near, "wide") == [b"old"]
    assert near.outcome(tx.otid) is Outcome.ROLLED_BACK


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_node_where_nothing_was_changed_does_not_say_how_it_ended(
    near: Connection, far: Connection, is_committed: bool
) -> None:
    far.queue("elsewhere").put(b"one")
    tx = near.begin()
    # The near node is told to roll back its branch, or votes that it has none; far all is done.
    assert near.queue("empty").get(tx=tx) is None
    assert far.queue("elsewhere").get(tx=tx) is not None
    if is_committed:
        tx.commit()
    else:
        tx.rollback()
    expected = Outcome.COMMITTED if is_committed else Outcome.ROLLED_BACK
    assert (near.outcome(tx.otid), far.outcome(tx.otid)) == (Outcome.UNKNOWN, expected)


def test_what_one_of_two_nodes_had_to_do_is_asked_there(
    near: Connection, far: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    far.queue("doubted").put(b"one")
    tx = near.begin()
    assert near.queue("empty").get(tx=tx) is None
    assert far.queue("doubted").get(tx=tx) is not None
    with monkeypatch.context() as patch:
        patch.setattr(Branch, "ask_outcome", _never_answered)
        patch.setattr(Branch, "commit_alone", _done_without_a_word)
        with pytest.raises(oncemq.OutcomeUnknown):
            tx.commit()
    assert near.outcome(tx.otid) is Outcome.COMMITTED
    assert emptied(far, "doubted") == []
    # The program has let go of that node: its own one is asked, which had nothing to do.
    far.close()
    assert near.outcome(tx.otid) is Outcome.UNKNOWN


_commit_alone = Branch.commit_alone


def _done_without_a_word(branch: Branch) -> NoReturn:
    _commit_alone(branch)
    raise system.TIMEOUT("no answer in time", system.Completion.MAYBE)


def _never_answered(branch: Branch) -> NoReturn:
    raise system.TRANSIENT("it is away", system.Completion.NO)


def test_a_node_that_was_only_looked_at_takes_no_part(near: Connection, far: Connection) -> None:
    with near.transaction() as tx:
        assert far.queue("nothing-there").get(tx=tx) is None
        near.queue("alone").put(b"one", tx=tx)
    assert emptied(near, "alone") == [b"one"]


def test_an_embedded_node_does_not_join_a_remote_transaction(near: Connection) -> None:
    with oncemq.connect("memory:") as inside, oncemq.connect("memory:") as other:
        with near.transaction() as tx:
            with pytest.raises(oncemq.OnceMQError, match="cannot end together"):
                inside.queue("any").put(b"x")
            inside.queue("any").put(b"kept", tx=oncemq.AUTOCOMMIT)
        with inside.transaction() as tx:
            with pytest.raises(oncemq.OnceMQError, match="cannot end together"):
                near.queue("any").put(b"x", tx=tx)
            with pytest.raises(oncemq.OnceMQError, match="another embedded node"):
                other.queue("any").put(b"x", tx=tx)
        assert len(inside.queue("any")) == 1


# --- Restarts


def test_a_node_that_restarts_is_reconnected_to() -> None:
    storage = MemoryStorage(time.monotonic)
    with running_coordinator() as coordinator:
        with running_node("one", coordinator, storage=storage) as address:
            mq = oncemq.connect(f"mq://{address}", timeout=10.0)
            mq.queue("kept").put(b"before")
        with running_node("one", coordinator, listen=address, storage=_reopened(storage)):
            mq.queue("kept").put(b"after")
            assert emptied(mq, "kept") == [b"before", b"after"]
            mq.close()


def test_work_that_a_restart_has_lost_is_rolled_back() -> None:
    storage = MemoryStorage(time.monotonic)
    with running_coordinator() as coordinator:
        with running_node("one", coordinator, storage=storage) as address:
            mq = oncemq.connect(f"mq://{address}", timeout=10.0)
            mq.queue("kept").put_many([b"one", b"two"])
            tx = mq.begin()
            assert mq.queue("kept").get(tx=tx) is not None
            mq.queue("other").put(b"new", tx=tx)
        with running_node("one", coordinator, listen=address, storage=_reopened(storage)):
            with pytest.raises(oncemq.RolledBack, match="restarted") as told:
                tx.commit()
            assert told.value.retryable
            assert emptied(mq, "kept") == [b"one", b"two"]
            assert emptied(mq, "other") == []
            mq.close()


def _reopened(storage: MemoryStorage) -> MemoryStorage:
    """What a restart would find: everything that was committed."""
    fresh = MemoryStorage(time.monotonic)
    fresh.__dict__.update(storage.__dict__)
    return fresh


def test_a_server_that_is_not_there_is_reported_at_once() -> None:
    with running_node("gone", None) as address:
        pass
    with oncemq.connect(f"mq://{address}", timeout=5.0) as mq:
        begun = time.monotonic()
        with pytest.raises(oncemq.ConnectionLost, match="Is the server running"):
            mq.queue("any").put(b"x")
        assert time.monotonic() - begun < 3


def test_a_dead_server_is_given_up_within_the_timeout() -> None:
    with running_node("gone", None) as address:
        mq = oncemq.connect(f"mq://{address}", timeout=1.0)
        mq.queue("any").put(b"x")
    begun = time.monotonic()
    with pytest.raises(oncemq.OnceMQError):
        mq.queue("any").put(b"y")
    assert time.monotonic() - begun < 3
    mq.close()


def test_a_node_without_a_coordinator_serves_what_needs_none() -> None:
    with running_node("lonely", None) as address, oncemq.connect(f"mq://{address}") as mq:
        mq.queue("any").put(b"x")
        assert mq.queue("any").get() is not None
        tx = mq.begin()
        with pytest.raises(oncemq.OnceMQError, match="names no coordinator"):
            mq.queue("any").put(b"x", tx=tx)


def test_without_a_coordinator_no_transaction_begins() -> None:
    with running_coordinator() as coordinator:
        pass
    with running_node("one", coordinator) as address, oncemq.connect(f"mq://{address}") as mq:
        with pytest.raises(oncemq.ConnectionLost, match="the coordinator at"), mq.transaction():
            mq.queue("any").put(b"x")
        assert len(mq.queue("any")) == 0


# --- Processes


def is_true_in_a_child(work: Callable[[], bool]) -> bool:
    """What the work answers in a process that was forked from this one."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    code = 2
    try:
        code = 0 if work() else 1
    finally:
        os._exit(code)


def refusal(use: Callable[[], object]) -> str:
    """What is said instead of doing it."""
    try:
        use()
    except oncemq.OnceMQError as refused:
        return str(refused)
    return ""


def test_a_forked_child_uses_the_connection_it_was_given(near: Connection) -> None:
    queue = near.queue("family")

    def put(payload: bytes) -> bool:
        with near.transaction():
            queue.put(payload)
        return True

    put(b"parent")
    assert is_true_in_a_child(lambda: put(b"child"))
    put(b"parent again")
    assert emptied(near, "family") == [b"parent", b"child", b"parent again"]


def test_a_forked_child_does_not_end_its_parents_transaction(near: Connection) -> None:
    queue = near.queue("own")
    with near.transaction() as tx:
        queue.put(b"one")
        assert is_true_in_a_child(lambda: "belongs to process" in refusal(tx.commit))
    assert emptied(near, "own") == [b"one"]


def test_an_embedded_node_is_refused_in_a_forked_child(tmp_path: Path) -> None:
    with oncemq.connect(f"file:{tmp_path}") as mq:
        mq.queue("any").put(b"x")

        def is_refused() -> bool:
            told = refusal(lambda: mq.queue("any").put(b"y"))
            mq.close()
            return "forked" in told

        assert is_true_in_a_child(is_refused)
        assert len(mq.queue("any")) == 1


def test_a_connection_without_a_secret_can_be_pickled(here: Place, near: Connection) -> None:
    near.queue("pickled").put(b"x")
    with pickle.loads(pickle.dumps(near)) as copy:
        assert emptied(copy, "pickled") == [b"x"]
    with oncemq.connect(here.url, token="me.secret") as secret:
        assert "secret" not in repr(secret)
        with pytest.raises(TypeError, match="token_file"):
            pickle.dumps(secret)
    with oncemq.connect("memory:") as inside, pytest.raises(TypeError, match="mq://"):
        pickle.dumps(inside)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(near.begin())


def test_a_directory_belongs_to_one_process(tmp_path: Path) -> None:
    with oncemq.connect(f"file:{tmp_path}") as mq:
        mq.queue("any").put(b"x")
        other = oncemq.connect(f"file:{tmp_path}")
        assert is_true_in_a_child(lambda: "belongs to one process" in refusal(other.ping))
    with oncemq.connect(f"file:{tmp_path}") as again:
        assert emptied(again, "any") == [b"x"]


def test_connections_to_the_same_directory_share_its_node(tmp_path: Path) -> None:
    first = oncemq.connect(f"file:{tmp_path}")
    second = oncemq.connect(f"file:{tmp_path / '..' / tmp_path.name}")
    with first.transaction() as tx:
        first.queue("a").put(b"1")
        second.queue("a").put(b"2", tx=tx)
    first.close()
    assert emptied(second, "a") == [b"1", b"2"]
    second.close()


def test_importing_the_client_brings_neither_servers_nor_terminal() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import oncemq, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    roots = {name.partition(".")[0] for name in told.stdout.split()}
    assert roots.isdisjoint({"mqserver", "coordinator", "Pyro5", "typer", "rich", "pyspark"})
