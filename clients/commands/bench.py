"""`oncemq bench`: how fast OnceMQ is here, in a few seconds: on this disk, or at a node.

A first impression for whoever chooses a machine or a disk, with one client and small messages. The
repository has measurements that compare with the bare limits, in `benchmarks/`.
"""

import contextlib
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clients.commands.options import AsJson
from clients.commands.reaching import Reach, answered, connection_of, settled
from clients.commands.terminal import ExitCode, note, print_json, progress, show_table
from clients.connecting import connect
from clients.connection import Connection
from clients.queue import Queue

BULK = 1000
NAME_BYTES = 6

EXAMPLES = {
    "oncemq bench": {
        "oncemq bench": "in this process, on this disk",
        "oncemq bench --data /srv/mq": "on another disk",
        "oncemq bench --url mq://HOST:PORT": "at a node, over the network",
        "oncemq bench --json": "one object, for scripts",
    },
}


@dataclass(frozen=True)
class Measured:
    """One kind of work: how long each piece took, and how many messages a piece has."""

    what: str
    messages: int
    seconds: tuple[float, ...]

    def at(self, part: float) -> float:
        """So much of the pieces took at most this long, in milliseconds."""
        ordered = sorted(self.seconds)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)] * 1000

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages * len(self.seconds) / sum(self.seconds)


def bench(
    reach: Reach,
    data: Annotated[
        Path,
        typer.Option(metavar="DIR", file_okay=False, help="Whose disk; nothing is left there."),
    ] = Path(),
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0.1, max=60, help="For each kind of work.")
    ] = 1.0,
    size: Annotated[
        int, typer.Option(metavar="N", min=0, max=1_000_000, help="Bytes of a message.")
    ] = 100,
    as_json: AsJson = False,
) -> int:
    """Measures how fast OnceMQ is here, with one client.

    Node and coordinator run in this process and keep their data on disk, unless --url names a node.
    Everything is durable when it counts. The queue that is used is deleted afterwards.
    """

    def run() -> int:
        with _connected(reach, data) as (connection, where), _queue(connection) as queue:
            found = _measure(connection, queue, bytes(size), seconds)
        if as_json:
            print_json({"where": where, "bytes": size, "measured": [_fields(m) for m in found]})
            return ExitCode.OK
        columns = ("what", ">p50 ms", ">p99 ms", ">messages/s")
        show_table(columns, [_row(each) for each in found], "Nothing was measured.")
        if Console().is_terminal:
            note(f"{where}; messages of {size} bytes; one client.")
        return ExitCode.OK

    return answered(run)


COMMANDS: dict[str, Callable[..., int]] = {"bench": bench}


@contextlib.contextmanager
def _connected(reach: Reach, data: Path) -> Iterator[tuple[Connection, str]]:
    if reach.url is not None:
        with connection_of(settled(reach)) as connection:
            connection.ping()
            yield connection, reach.url
        return
    with (
        tempfile.TemporaryDirectory(prefix="oncemq-bench-", dir=data) as folder,
        connect(f"file:{Path(folder).absolute()}") as connection,
    ):
        yield connection, f"In this process, on the disk of {data.absolute()}"


@contextlib.contextmanager
def _queue(connection: Connection) -> Iterator[Queue]:
    queue = connection.queue(f"oncemq-bench-{secrets.token_hex(NAME_BYTES)}")
    queue.put(b"makes the queue")
    queue.get()
    try:
        yield queue
    finally:
        connection.admin().purgeQueue(queue.name)
        connection.admin().deleteQueue(queue.name)


def _measure(
    connection: Connection, queue: Queue, payload: bytes, seconds: float
) -> list[Measured]:
    many = [payload] * BULK

    def move() -> None:
        with connection.transaction():
            message = queue.get()
            assert message is not None
            queue.put(message.payload)

    def put_many() -> None:
        with connection.transaction():
            queue.put_many(many)

    def get_many() -> None:
        with connection.transaction():
            assert len(queue.get_many(BULK)) == BULK

    with progress("Measuring", 5, time.monotonic) as shown:
        puts = _timed("put one", 1, lambda: queue.put(payload), seconds)
        shown.advance(1)
        moves = _timed("get one and put it, in a transaction", 1, move, seconds)
        shown.advance(1)
        gets = _timed("get one", 1, queue.get, seconds, len(puts.seconds))
        shown.advance(1)
        connection.admin().purgeQueue(queue.name)
        bulk_puts = _timed(f"put {BULK:,}, in a transaction", BULK, put_many, seconds)
        shown.advance(1)
        bulk_gets = _timed(
            f"get {BULK:,}, in a transaction", BULK, get_many, seconds, len(bulk_puts.seconds)
        )
    return [puts, gets, moves, bulk_puts, bulk_gets]


def _timed(
    what: str, messages: int, work: Callable[[], object], seconds: float, most: int = 1_000_000
) -> Measured:
    """The work, again and again, for so long or so often."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    begun = time.perf_counter()
    while begun < end and len(taken) < most:
        work()
        now = time.perf_counter()
        taken.append(now - begun)
        begun = now
    return Measured(what, messages, tuple(taken))


def _row(measured: Measured) -> tuple[str, ...]:
    return (
        measured.what,
        f"{measured.at(0.5):.3f}",
        f"{measured.at(0.99):.3f}",
        f"{measured.rate:,.0f}",
    )


def _fields(measured: Measured) -> dict[str, object]:
    return {
        "what": measured.what,
        "messages": measured.messages,
        "times": len(measured.seconds),
        "p50_ms": measured.at(0.5),
        "p99_ms": measured.at(0.99),
        "messages_per_s": measured.rate,
    }
