"""A node that was restarted is not taken in by copies of calls that were for the one before it.

The network keeps all that a client has sent, and sends it once more, each call on a connection of
its own, when the node has been killed and started again. A get is the call that this would harm:
carried out anew it takes another message than its owner was given, and the owner's commit, which
the node then takes for that of a branch at work, would do away with a message that nobody has seen.
"""

from __future__ import annotations

import random
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import oncemq
from idl.call import Address
from tests.integration.cluster import Cluster, ended, free_port
from tests.integration.fault_proxy import FaultProxy, Pair


class KeepingProxy(FaultProxy):
    """Passes everything on, and keeps what clients have sent."""

    def __init__(self, port: int, target: Address) -> None:
        self._kept: list[tuple[bytes, bytes]] = []
        super().__init__(port, target, seed=0)

    def send_again(self) -> int:
        """All calls so far come to the server once more; how many that are."""
        for login, frame in self._kept:
            self.send_copy(login, frame)
        return len(self._kept)

    def pass_on(self, pair: Pair, source: socket.socket, sink: socket.socket, frame: bytes) -> None:
        """See `FaultProxy.pass_on`."""
        if source is pair.client and frame is not pair.login:
            self._kept.append((pair.login, frame))
        sink.sendall(frame)


def _got(client: oncemq.Connection) -> bytes:
    message = client.queue("a").get(timeout=0)
    assert message is not None
    return message.payload


@pytest.mark.parametrize("bug", [None, "one life"])
def test_a_get_that_a_dead_node_has_answered_is_not_carried_out_by_the_next(
    tmp_path: Path, bug: str | None
) -> None:
    chance = random.Random(7)
    cluster = Cluster(tmp_path, chance, bug)
    proxy = KeepingProxy(free_port(chance), cluster.paths["n1"])
    direct = f"mq://{cluster.paths['n1']}"
    cluster.route("n1", proxy.address)
    cluster.start()
    node = cluster.nodes["n1"]
    with (
        ended(*cluster.servers),
        ThreadPoolExecutor(1) as elsewhere,
        oncemq.connect(direct) as other,
        oncemq.connect(f"mq://{proxy.address}") as owner,
    ):
        other.queue("a").put_many([b"1", b"2", b"3"])
        is_committed = True
        try:
            with owner.transaction():
                assert _got(owner) == b"1"
                node.kill()
                node.start()
                node.wait_until_ready()
                # In a thread of its own, which is in no transaction.
                assert elsewhere.submit(_got, other).result() == b"1"
                assert proxy.send_again() > 0
        except oncemq.RolledBack:
            is_committed = False
        left = [message.payload for message in other.queue("a").get_many(10)]
        proxy.close()
    # With the planted bug 2 is gone, which nobody was given.
    expected = (False, [b"2", b"3"]) if bug is None else (True, [b"3"])
    assert (is_committed, left) == expected
