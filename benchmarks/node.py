"""What a node costs through the client: puts, moves, two nodes, many clients, bulk, and embedded.

Each way is held against the bare limit of what it must do: so many calls through stock Pyro5, and
so many `fdatasync` of a block in a file that was written in full before. Nodes keep their messages
on disk. Node, coordinator and clients are processes of their own on the loopback interface; the
embedded node is in this one. Messages have 100 bytes. *Awake* is the same with a client that does
not sleep while it waits (`oncemq.connect(awake=…)`).

As a program, `python -m benchmarks.node URL`, the module is a client, which runs its share of
transactions for each line of its input, and ends with it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import oncemq
from benchmarks.measure import Bar, Comparison, Setting, Yardstick
from benchmarks.orb import PYRO, OverPyro, ServerProcess

HOST = "127.0.0.1"
PAYLOAD = b"x" * 100
BLOCK = bytes(512)
BLOCKS = 8192
MANY_PUTS = 1000
MANY_CLIENTS = 8
SHARE = 25
BULK = 5000
BULK_PER_S = 100_000
SEED = 50
AWAKE_S = 0.0003

PUT_RATIO_MAX = 1.35
MOVE_RATIO_MAX = 1.5
TWO_NODES_RATIO_MAX = 1.6
EMBEDDED_RATIO_MAX = 1.5
SCALING_MIN = 2.0

AUTOCOMMIT = "put of its own"
ONE_PUT = "transaction of one put"
MANY = f"transaction of {MANY_PUTS} puts"
MOVE = "get + put"
TWO_NODES = "a put to each of two nodes"
PUT_BULK = f"put_many({BULK})"
GET_BULK = f"get_many({BULK})"
PACE = f"{BULK_PER_S:,} messages/s"
EMBEDDED = "embedded, transaction of one put"

Work = Callable[[oncemq.Connection], None]


def comparisons(setting: Setting) -> list[Comparison]:
    """What this benchmark compares."""
    folder = setting.scratch
    return [*_of_puts(folder), *_of_moves(folder), *_of_much(folder), _of_embedded(folder)]


def _of_puts(folder: Path) -> list[Comparison]:
    put = _limit(1, 1)
    return [
        Comparison(
            title="puts to one node, one client",
            subjects=(
                _OneNode(AUTOCOMMIT, folder / "own", put_alone),
                _OneNode(_awake(AUTOCOMMIT), folder / "own-awake", put_alone, AWAKE_S),
                _OneNode(ONE_PUT, folder / "one", put_within),
                _OneNode(_awake(ONE_PUT), folder / "one-awake", put_within, AWAKE_S),
                _Limit(put, folder / "limit", 1, 1),
            ),
            baseline=put,
            bars=_bars((AUTOCOMMIT, ONE_PUT), put, PUT_RATIO_MAX),
            calls=100,
        ),
        Comparison(
            title=f"{MANY_PUTS} puts in one transaction: one round trip",
            subjects=(
                _OneNode(MANY, folder / "many", put_many_within),
                _Limit(put, folder / "limit", 1, 1),
            ),
            baseline=put,
            calls=10,
        ),
    ]


def _of_moves(folder: Path) -> list[Comparison]:
    move, two = _limit(2, 1), _limit(3, 2)
    return [
        Comparison(
            title="a message moves between queues of one node",
            subjects=(
                _OneNode(MOVE, folder / "move", move_one),
                _OneNode(_awake(MOVE), folder / "move-awake", move_one, AWAKE_S),
                _Limit(move, folder / "limit", 2, 1),
            ),
            baseline=move,
            bars=_bars((MOVE,), move, MOVE_RATIO_MAX),
            calls=100,
        ),
        Comparison(
            title="two nodes in one transaction",
            subjects=(
                _TwoNodes(TWO_NODES, folder / "two"),
                _TwoNodes(_awake(TWO_NODES), folder / "two-awake", AWAKE_S),
                _Limit(two, folder / "limit", 3, 2),
            ),
            baseline=two,
            bars=_bars((TWO_NODES,), two, TWO_NODES_RATIO_MAX),
            calls=50,
        ),
    ]


def _awake(name: str) -> str:
    return f"{name}, awake"


def _bars(names: tuple[str, ...], limit: str, maximum: float) -> tuple[Bar, ...]:
    return tuple(Bar(way, limit, maximum) for name in names for way in (name, _awake(name)))


def _of_much(folder: Path) -> list[Comparison]:
    return [
        Comparison(
            title=f"{SHARE} transactions of one put for each client process",
            subjects=(
                _Clients(folder / "several", MANY_CLIENTS),
                _Clients(folder / "single", 1),
            ),
            baseline=_clients(1),
            # So many times the work in so many times the time: the rest is the gain.
            bars=(Bar(_clients(MANY_CLIENTS), _clients(1), MANY_CLIENTS / SCALING_MIN),),
            calls=5,
        ),
        Comparison(
            title="bulk, through the network",
            subjects=(_PutBulk(folder / "put"), _GetBulk(folder / "get"), _Pace()),
            baseline=PACE,
            bars=(Bar(PUT_BULK, PACE, 1.0), Bar(GET_BULK, PACE, 1.0)),
            yardstick=Yardstick.MEDIAN_CALL,
            calls=10,
        ),
    ]


def _of_embedded(folder: Path) -> Comparison:
    sync = _limit(0, 1)
    return Comparison(
        title="embedded on disk",
        subjects=(_Embedded(folder / "embedded"), _Limit(sync, folder / "limit", 0, 1)),
        baseline=sync,
        bars=(Bar(EMBEDDED, sync, EMBEDDED_RATIO_MAX),),
        calls=100,
    )


# --- The work ------------------------------------------------------------------------------------


def put_alone(mq: oncemq.Connection) -> None:
    """One message, a transaction of its own."""
    mq.queue("orders").put(PAYLOAD)


def put_within(mq: oncemq.Connection) -> None:
    """One message in a transaction."""
    with mq.transaction():
        mq.queue("orders").put(PAYLOAD)


def put_many_within(mq: oncemq.Connection) -> None:
    """Many messages in a transaction."""
    orders = mq.queue("orders")
    with mq.transaction():
        for _ in range(MANY_PUTS):
            orders.put(PAYLOAD)


def move_one(mq: oncemq.Connection) -> None:
    """One message from the front of a queue to the end of another."""
    with mq.transaction():
        message = mq.queue("from").get()
        if message is None:
            mq.queue("from").put_many([PAYLOAD] * SEED)
        else:
            mq.queue("to").put(message.payload)


# --- Servers and clients -------------------------------------------------------------------------


class _Servers:
    """A coordinator and nodes, in processes of their own."""

    def __init__(self, folder: Path, count: int) -> None:
        where = ["--data", str(folder / "coordinator"), "--listen", f"{HOST}:0"]
        quiet = ["--log-level", "error"]
        self._processes = [ServerProcess("coordinator", *where, *quiet)]
        coordinator = _address(self._processes[0])
        self.urls: list[str] = []
        for number in range(count):
            where = ["--data", str(folder / f"node-{number}"), "--listen", f"{HOST}:0"]
            where += ["--coordinator", coordinator]
            self._processes.append(ServerProcess("mqserver", *where, *quiet))
            self.urls.append(f"mq://{_address(self._processes[-1])}")

    def stop(self) -> None:
        for process in self._processes:
            process.stop()


def _address(process: ServerProcess) -> str:
    return process.announced.rpartition(" ")[2]


@dataclass
class _OneNode:
    name: str
    folder: Path
    work: Work
    awake_s: float = 0.0

    def start(self) -> None:
        self._servers = _Servers(self.folder, 1)
        self._mq = oncemq.connect(self._servers.urls[0], awake=self.awake_s)

    def stop(self) -> None:
        self._mq.close()
        self._servers.stop()

    def one_call(self) -> None:
        self.work(self._mq)


@dataclass
class _TwoNodes:
    name: str
    folder: Path
    awake_s: float = 0.0

    def start(self) -> None:
        self._servers = _Servers(self.folder, 2)
        near, far = self._servers.urls
        self._near = oncemq.connect(near, awake=self.awake_s)
        self._far = oncemq.connect(far, awake=self.awake_s)

    def stop(self) -> None:
        self._near.close()
        self._far.close()
        self._servers.stop()

    def one_call(self) -> None:
        with self._near.transaction():
            self._near.queue("orders").put(PAYLOAD)
            self._far.queue("audit").put(PAYLOAD)


class _Clients:
    """So many client processes, each of which runs its share of transactions."""

    def __init__(self, folder: Path, count: int) -> None:
        self.name = _clients(count)
        self._folder = folder
        self._count = count

    def start(self) -> None:
        self._servers = _Servers(self._folder, 1)
        url = self._servers.urls[0]
        self._processes = [ServerProcess("benchmarks.node", url) for _ in range(self._count)]

    def stop(self) -> None:
        for process in self._processes:
            process.stop()
        self._servers.stop()

    def one_call(self) -> None:
        for process in self._processes:
            process.say("go")
        for process in self._processes:
            process.listen()


def _clients(count: int) -> str:
    return f"{count} client process{'es' if count > 1 else ''}"


@dataclass
class _PutBulk:
    folder: Path
    name: str = PUT_BULK

    def start(self) -> None:
        self._servers = _Servers(self.folder, 1)
        self._mq = oncemq.connect(self._servers.urls[0])
        self._batch = [PAYLOAD] * BULK

    def stop(self) -> None:
        self._mq.close()
        self._servers.stop()

    def one_call(self) -> None:
        self._mq.queue("orders").put_many(self._batch)


@dataclass
class _GetBulk:
    """What is got was put before, by another process and outside of what is measured."""

    folder: Path
    name: str = GET_BULK
    rounds_ahead: int = 300

    def start(self) -> None:
        self._servers = _Servers(self.folder, 1)
        self._mq = oncemq.connect(self._servers.urls[0])
        self._orders = self._mq.queue("orders")
        for _ in range(self.rounds_ahead):
            self._orders.put_many([PAYLOAD] * BULK)

    def stop(self) -> None:
        self._mq.close()
        self._servers.stop()

    def one_call(self) -> None:
        found = len(self._orders.get_many(BULK))
        assert found == BULK, f"{found} messages: more have to be put ahead"


class _Pace:
    name = PACE

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def one_call(self) -> None:
        time.sleep(BULK / BULK_PER_S)


@dataclass
class _Embedded:
    folder: Path
    name: str = EMBEDDED

    def start(self) -> None:
        self._mq = oncemq.connect(f"file:{self.folder}")

    def stop(self) -> None:
        self._mq.close()

    def one_call(self) -> None:
        put_within(self._mq)


# --- The limits ----------------------------------------------------------------------------------


def _limit(round_trips: int, syncs: int) -> str:
    calls = f"{round_trips} {PYRO} round trip{'s' if round_trips > 1 else ''}"
    writes = f"{syncs} fdatasync" if syncs == 1 else f"{syncs} fdatasyncs"
    return f"{calls} + {writes}" if round_trips else writes


class _Limit:
    """So many calls and forced writes, one behind the other, and nothing else."""

    def __init__(self, name: str, path: Path, round_trips: int, syncs: int) -> None:
        self.name = name
        self._path = path
        self._round_trips = round_trips
        self._syncs = syncs
        self._calls = OverPyro(b"", None)

    def start(self) -> None:
        if self._round_trips:
            self._calls.start()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._fd, BLOCK * BLOCKS, 0)
        os.fsync(self._fd)
        self._next = 0

    def stop(self) -> None:
        if self._round_trips:
            self._calls.stop()
        os.close(self._fd)

    def one_call(self) -> None:
        for _ in range(self._round_trips):
            self._calls.one_call()
        for _ in range(self._syncs):
            os.pwrite(self._fd, BLOCK, self._next % BLOCKS * len(BLOCK))
            os.fdatasync(self._fd)
            self._next += 1


def _be_client(url: str) -> None:
    with oncemq.connect(url) as mq:
        put_within(mq)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while sys.stdin.readline():
            for _ in range(SHARE):
                put_within(mq)
            sys.stdout.write("done\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _be_client(sys.argv[1])
