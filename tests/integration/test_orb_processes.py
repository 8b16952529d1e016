"""The orb between real processes: many clients, threads, forks, kills and restarts."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from idl import system
from idl.call import limited
from idl.orb import NetworkOrb
from tests.integration.orb_server import Echo, ServerProcess, start_server


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    started = start_server()
    yield started
    started.kill()


@pytest.fixture
def client() -> Iterator[NetworkOrb]:
    orb = NetworkOrb(timeout_s=10.0)
    yield orb
    orb.close()


def test_a_server_with_two_hundred_connected_clients_still_answers(
    server: ServerProcess, client: NetworkOrb
) -> None:
    orbs = [NetworkOrb() for _ in range(200)]
    proxies = [orb.proxy(server.reference, Echo) for orb in orbs]
    for number, proxy in enumerate(proxies):
        assert proxy.same(b"%d" % number) == b"%d" % number
    # All of them are still connected: the newcomer is the two hundred and first.
    newcomer = client.proxy(server.reference, Echo)
    begun = time.monotonic()
    assert newcomer.same(b"new") == b"new"
    assert time.monotonic() - begun < 1.0
    assert [proxy.same(b"x") for proxy in proxies] == [b"x"] * 200
    for orb in orbs:
        orb.close()


def test_sixteen_threads_and_their_forked_children_each_get_their_own_answer(
    server: ServerProcess, client: NetworkOrb
) -> None:
    proxy = client.proxy(server.reference, Echo)
    wrong: list[str] = []
    stop = threading.Event()

    def ask(number: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            data = b"%d/%d" % (number, turn)
            if proxy.same(data) != data:
                wrong.append(f"thread {number}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    # Forked while the threads are in the middle of their calls: connections and locks are in use.
    children = [_forked_child(proxy, number) for number in range(4)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0, 0, 0, 0]
    assert wrong == []


def _forked_child(proxy: Echo, number: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        ok = all(
            proxy.same(b"child %d/%d" % (number, i)) == b"child %d/%d" % (number, i)
            for i in range(50)
        )
        os._exit(0 if ok else 1)
    finally:
        os._exit(2)


def test_a_killed_server_gives_a_clear_error_and_the_client_works_again_after_the_restart(
    server: ServerProcess, client: NetworkOrb
) -> None:
    proxy = client.proxy(server.reference, Echo)
    assert proxy.count() == 1
    server.kill()
    begun = time.monotonic()
    with pytest.raises(system.TRANSIENT, match="Is the server running") as told:
        proxy.count()
    assert told.value.completed is system.Completion.NO
    assert time.monotonic() - begun < 1.0
    restarted = start_server(server.port)
    try:
        assert proxy.count() == 1
    finally:
        restarted.kill()


@pytest.mark.parametrize(
    ("operation", "raised"),
    [
        # Tried again, and then nobody is there.
        ("slow", system.TRANSIENT),
        ("slow_once", system.COMM_FAILURE),
    ],
)
def test_a_server_killed_during_a_call_leaves_the_caller_with_what_is_known(
    server: ServerProcess, client: NetworkOrb, operation: str, raised: type[Exception]
) -> None:
    proxy = client.proxy(server.reference, Echo)
    proxy.count()
    killer = threading.Timer(0.3, server.kill)
    killer.start()
    with pytest.raises(raised, match="may have been carried out"):
        getattr(proxy, operation)(5000)
    killer.join()


def test_a_call_ends_at_its_timeout_and_the_connection_is_not_used_again(
    server: ServerProcess, client: NetworkOrb
) -> None:
    proxy = client.proxy(server.reference, Echo)
    begun = time.monotonic()
    with limited(0.3), pytest.raises(system.TIMEOUT) as told:
        proxy.slow(2000)
    assert 0.2 < time.monotonic() - begun < 1.5
    assert told.value.completed is system.Completion.MAYBE
    assert proxy.same(b"another") == b"another"


def test_a_proxy_may_have_a_timeout_of_its_own(server: ServerProcess, client: NetworkOrb) -> None:
    proxy = client.proxy(server.reference, Echo, timeout_s=0.2)
    with pytest.raises(system.TIMEOUT):
        proxy.slow(1000)


def test_a_server_that_accepts_and_never_answers_is_given_up_in_time(client: NetworkOrb) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = client.proxy(f"PYRO:echo@127.0.0.1:{silent.getsockname()[1]}", Echo)
        begun = time.monotonic()
        with limited(0.5), pytest.raises(system.TIMEOUT) as told:
            proxy.same(b"")
        assert time.monotonic() - begun < 2.0
        assert told.value.completed is system.Completion.NO


def test_orderly_shutdown_finishes_the_call_that_is_running(
    server: ServerProcess, client: NetworkOrb
) -> None:
    proxy = client.proxy(server.reference, Echo)
    proxy.same(b"")
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(proxy.slow(700)))
    caller.start()
    time.sleep(0.2)
    code = server.terminate()
    caller.join()
    assert answers == [700]
    assert code == 0
    with pytest.raises(system.TRANSIENT):
        proxy.same(b"")


def test_each_call_has_a_key_of_its_own(server: ServerProcess, client: NetworkOrb) -> None:
    proxy = client.proxy(server.reference, Echo)
    keys = {proxy.caller() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {16}


@pytest.mark.parametrize("size", [0, 1, 255 * 1024, 256 * 1024 + 1, 10_000_000])
def test_payloads_of_any_size_arrive_whole(
    server: ServerProcess, client: NetworkOrb, size: int
) -> None:
    data = os.urandom(size)
    assert client.proxy(server.reference, Echo).same(data) == data


def test_a_request_over_the_limit_is_refused_before_it_is_sent(
    server: ServerProcess, client: NetworkOrb
) -> None:
    proxy = client.proxy(server.reference, Echo)
    with pytest.raises(system.IMP_LIMIT, match="send less at a time") as told:
        proxy.same(bytes(64 * 1024 * 1024))
    assert told.value.completed is system.Completion.NO
    assert proxy.same(b"x") == b"x"
