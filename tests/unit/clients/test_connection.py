"""Connecting: what a url may be, what is said of one that is wrong, and what is not opened yet."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import oncemq
from clients import connecting
from clients.errors import OnceMQError
from clients.heartbeat import Heartbeat
from clients.leases import Leases
from idl import system


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("orders", 'write "mq://HOST:PORT", "file:DIR" or "memory:"'),
        ("http://127.0.0.1:7411", 'write "mq://HOST:PORT"'),
        ("mq:127.0.0.1:7411", 'write "mq://HOST:PORT"'),
        ("mq://127.0.0.1:none", "host:port"),
        ("mq://127.0.0.1:0", "port 0"),
        ("mq://me:secret@127.0.0.1:7411", "holds no secret"),
        ("file:", "name the directory"),
        ("file://host/data", "name the directory"),
    ],
)
def test_a_wrong_url_says_what_is_right(url: str, told: str) -> None:
    with pytest.raises(OnceMQError, match=told) as refused:
        oncemq.connect(url)
    assert "secret@" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mq://localhost", "mq://localhost"),
        ("mq://[::1]:7411", "mq://[::1]:7411"),
        ("file:./data", "file:./data"),
        ("file:///var/lib/data", "file:///var/lib/data"),
        ("memory:", "memory:"),
    ],
)
def test_a_right_url_connects_to_nothing_yet(
    url: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with oncemq.connect(url) as mq:
        assert shown in repr(mq)
    assert list(tmp_path.iterdir()) == []


def test_the_environment_says_where_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEMQ_URL", raising=False)
    assert connecting.DEFAULT_URL in repr(oncemq.connect())
    monkeypatch.setenv("ONCEMQ_URL", "memory:")
    assert "memory:" in repr(oncemq.connect())
    monkeypatch.setenv("ONCEMQ_URL", "mq://10.0.0.1:7411")
    monkeypatch.setenv("ONCEMQ_COORDINATOR", "nonsense")
    with pytest.raises(OnceMQError, match="the coordinator"):
        oncemq.connect()


def test_a_timeout_is_positive_and_finite() -> None:
    with pytest.raises(ValueError, match="positive, finite"):
        oncemq.connect("memory:", timeout=0)
    with oncemq.connect("memory:") as mq, pytest.raises(ValueError, match="positive, finite"):
        mq.begin(timeout=float("inf"))


@pytest.mark.parametrize("awake", [-0.001, 0.02, 1, float("nan"), float("inf")])
def test_nobody_is_awake_for_long(awake: float) -> None:
    with pytest.raises(ValueError, match=r"0 to 0\.01 seconds are waited awake"):
        oncemq.connect("mq://127.0.0.1:7411", awake=awake)


def test_an_embedded_node_takes_no_token() -> None:
    with pytest.raises(OnceMQError, match="needs no token"):
        oncemq.connect("memory:", token="me.secret")


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OnceMQError, match=r"the token cannot be read.*nowhere"):
        oncemq.connect("mq://127.0.0.1:7411", token_file=tmp_path / "nowhere")


def test_a_queue_has_a_name_that_a_queue_can_have() -> None:
    with oncemq.connect("memory:") as mq:
        for name in ("", "a/b", "..", "x" * 129, "ä"):
            with pytest.raises(ValueError, match="queue name"):
                mq.queue(name)


def test_every_public_name_can_be_had_from_the_front_door() -> None:
    import clients

    assert set(oncemq.__all__) == set(clients.__all__)
    assert sorted(oncemq.__all__) == list(oncemq.__all__)
    for name in oncemq.__all__:
        assert getattr(oncemq, name) is not None


# --- Signs of life


class _Coordinator:
    def __init__(self) -> None:
        self.renewed = threading.Event()
        self.is_away = False

    def lease(self, session: int, oldest: int) -> Any:
        from idl.coordination import mqLease

        return mqLease(7, bytes(12), 0, 1024, bytes(16), 0)

    def renew(self, session: int, transactions: object) -> None:
        self.renewed.set()
        if self.is_away:
            raise system.TRANSIENT("away")

    def endSession(self, session: int) -> None: ...


def test_a_session_in_use_is_renewed_until_it_is_let_go() -> None:
    coordinator: Any = _Coordinator()
    clock = iter(range(10**6)).__next__
    leases = Leases(coordinator, clock)
    heartbeat = Heartbeat(clock)
    leases.draw()
    for is_away in (False, True):
        coordinator.is_away = is_away
        coordinator.renewed.clear()
        heartbeat.watch(leases)
        assert coordinator.renewed.wait(10)
    thread = heartbeat._thread
    assert thread is not None
    heartbeat.unwatch(leases)
    thread.join(10)
    assert not thread.is_alive()
