"""OnceMQ's own way of doing what is measured, and the bare limit's. See `Client`."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import oncemq
from benchmarks.peers.operations import NEXT, WORK, Missing


class OnceMQ:
    """See `Client`. Each call is a transaction."""

    WORK = WORK

    def __init__(self, address: str) -> None:
        self._mq = oncemq.connect(address)
        self._work, self._next = self._mq.queue(self.WORK), self._mq.queue(NEXT)

    def create(self) -> None:
        for queue in (self._work, self._next):
            while queue.get_many(5000):
                continue

    def put(self, payload: bytes) -> None:
        self._work.put(payload)

    def put_many(self, payloads: Sequence[bytes]) -> None:
        self._work.put_many(payloads)

    def get(self) -> None:
        if self._work.get() is None:
            raise Missing

    def get_many(self, count: int) -> None:
        if len(self._work.get_many(count)) != count:
            raise Missing

    def move(self) -> None:
        with self._mq.transaction():
            message = self._work.get()
            if message is None:
                raise Missing
            self._next.put(message.payload)

    def move_at_once(self) -> None:
        """The same without having seen it: one call."""
        if not self._work.move_to(self._next):
            raise Missing

    def put_and_get(self, payload: bytes) -> None:
        """One more and one less: as many are queued as before. Two transactions."""
        self.put(payload)
        self.get()

    def close(self) -> None:
        self._mq.close()


class ShallowOnceMQ(OnceMQ):
    """The same with a queue of its own, in which few messages stay."""

    WORK = "shallow"


class DeepOnceMQ(OnceMQ):
    """The same with a queue of its own, in which very many messages stay."""

    WORK = "deep"


class TwoNodes(OnceMQ):
    """Two nodes and the coordinator between them. The address names both nodes."""

    def __init__(self, address: str) -> None:
        here, there = address.split()
        super().__init__(here)
        self._far = oncemq.connect(there)

    def two_phase(self, payload: bytes) -> None:
        """A message at each of them, or at none."""
        with self._mq.transaction():
            self._work.put(payload)
            self._far.queue(NEXT).put(payload)

    def close(self) -> None:
        self._far.close()
        super().close()


class Bare:
    """The limit: a round trip to a server that does nothing, and the same bytes synced to a file.

    The file was written in full before, so that nothing but the bytes has to reach the disk.
    """

    FILE_BYTES = 16 << 20
    RECORD = bytes(64)

    def __init__(self, address: str) -> None:
        where, folder = address.split(" ", 1)
        host, _, port = where.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = os.open(Path(folder) / f"{os.getpid()}", os.O_RDWR | os.O_CREAT, 0o600)
        block = bytes(1 << 20)
        for offset in range(0, self.FILE_BYTES, len(block)):
            os.pwrite(self._file, block, offset)
        os.fsync(self._file)
        self._next = 0

    def create(self) -> None:
        """There are no queues."""

    def put(self, payload: bytes) -> None:
        self.go(payload)
        self.sync(payload)

    def go(self, payload: bytes) -> None:
        """There and back."""
        self._socket.sendall(len(payload).to_bytes(4) + payload)
        left = 4
        while left:
            found = self._socket.recv(left)
            if not found:
                raise ConnectionError("the server has hung up")
            left -= len(found)

    def sync(self, payload: bytes) -> None:
        """It is on disk."""
        room = -(-len(payload) // 512) * 512
        if self._next + room > self.FILE_BYTES:
            self._next = 0
        os.pwrite(self._file, payload, self._next)
        os.fdatasync(self._file)
        self._next += room

    def put_many(self, payloads: Sequence[bytes]) -> None:
        self.put(b"".join(payloads))

    def get(self) -> None:
        # That a message is gone must be on disk, too.
        self.put(self.RECORD)

    def get_many(self, count: int) -> None:
        self.put(self.RECORD)

    def move(self) -> None:
        self.put(self.RECORD)

    def close(self) -> None:
        self._socket.close()
        os.close(self._file)
