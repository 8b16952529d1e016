"""Follows a queue by its event channel: first what is there, then each message after its commit.

The consumer of `CosEvent` that pulls, as fits a client that others cannot call. An event is a
hint, and the queue is the truth. A channel that is lost, because the node was restarted or the
client was silent for too long, is subscribed to again; what was told before is then told again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from idl import system
from idl.call import Address, Orb, limited
from idl.cos import Disconnected, EventChannel, ProxyPullSupplier
from idl.mq import Mq_Fifo

# Longer than a node lets a pull wait, so that no event is lost on the way.
PULL_S = 30.0
PAUSE_S = 0.5
PAUSE_S_MAX = 10.0

_GONE = (
    Disconnected,
    system.OBJECT_NOT_EXIST,
    system.COMM_FAILURE,
    system.TRANSIENT,
)


class Event(NamedTuple):
    """Something has arrived; without a key: look what there is."""

    queue: str
    key: str
    group: int


class Following:
    """One subscription; `events` goes on for ever. `close` lets the channel go."""

    def __init__(
        self,
        orb: Orb,
        address: Address,
        queue: str,
        group: int,
        channel: str,
        sleep: Callable[[float], None],
    ) -> None:
        self._fifo = orb.proxy(f"PYRO:fifo/{queue}@{address}", Mq_Fifo)
        self._channel = orb.proxy(f"PYRO:channel/{channel}@{address}", EventChannel)
        self._name = channel
        self._group = group
        self._sleep = sleep

    def events(self) -> Iterator[Event]:
        """Every event; raises if the node cannot be reached at the beginning."""
        supplier = self._subscribed()
        pause_s = PAUSE_S
        while True:
            try:
                with limited(PULL_S):
                    event = supplier.pull()
            except system.TIMEOUT:
                continue
            except _GONE:
                self._sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                with contextlib.suppress(*_GONE, system.TIMEOUT):
                    supplier = self._subscribed()
                continue
            pause_s = PAUSE_S
            match event:
                case (str(queue), str(key), int(group)):
                    yield Event(queue, key, group)

    def close(self) -> None:
        """Nobody listens any more."""
        with contextlib.suppress(*_GONE, system.TIMEOUT):
            self._channel.destroy()

    def _subscribed(self) -> ProxyPullSupplier:
        supplier = self._channel.for_consumers().obtain_pull_supplier()
        supplier.connect_pull_consumer(None)
        self._fifo.mqStartNotify(self._name, self._group)
        return supplier
