"""`make demo`: what works so far, shown with real processes. Today that is the door to the network.

A server of its own process is called, killed, restarted and besieged, and what its caller sees is
put into a table. Queues, transactions and Spark join the demo as they come to exist; nothing is
shown here that does not happen.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from idl import system
from idl.call import Address
from idl.mapping import Text, UnsignedLong, UserException, exception, interface, operation
from idl.orb import NetworkOrb

CALLS = 2000
SILENT_PEERS = 200
TIMEOUT_S = 5.0


@exception()
class OutOfStock(UserException):
    """There is nothing left of it; order less, or wait."""

    article: Annotated[str, Text(40)]
    left: UnsignedLong


@interface()
class Shop(Protocol):
    """A small interface, declared as OnceMQ's own are."""

    @operation(OutOfStock)
    def order(self, article: Annotated[str, Text(40)], pieces: UnsignedLong) -> UnsignedLong: ...

    @operation()
    def order_slowly(self, article: Annotated[str, Text(40)]) -> UnsignedLong: ...


class ShopServant:
    """Has ten thousand of everything."""

    def __init__(self) -> None:
        self._left = 10_000

    def order(self, article: str, pieces: int) -> int:
        if pieces > self._left:
            raise OutOfStock(article, self._left)
        self._left -= pieces
        return self._left

    def order_slowly(self, article: str) -> int:
        time.sleep(TIMEOUT_S)
        return self.order(article, 1)


@dataclass
class Demo:
    """The running server, its client, and the lines of the table."""

    port: int = 0
    reference: str = ""
    server: subprocess.Popen[str] | None = None
    orb: NetworkOrb = field(default_factory=lambda: NetworkOrb(timeout_s=TIMEOUT_S))
    lines: list[tuple[str, str]] = field(default_factory=list)

    def start_server(self) -> None:
        """Starts the server, on the port that it had before if it had one."""
        command = [sys.executable, "-m", "clients.demo", "serve", str(self.port)]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        with self.server.stdout as output:
            self.reference = output.readline().strip()
        self.port = int(self.reference.rpartition(":")[2])

    def kill_server(self) -> None:
        """kill -9."""
        if self.server is not None:
            self.server.kill()
            self.server.wait()

    @property
    def shop(self) -> Shop:
        return self.orb.proxy(self.reference, Shop)


# --- What is shown -------------------------------------------------------------------------------


def call_often(demo: Demo) -> str:
    """The same proxy, call after call."""
    shop = demo.shop
    begun = time.perf_counter()
    for _ in range(CALLS):
        shop.order("pen", 1)
    seconds = time.perf_counter() - begun
    return f"{CALLS / seconds:,.0f} calls a second, {seconds / CALLS * 1e6:.0f} microseconds each"


def raise_remotely(demo: Demo) -> str:
    """The server's exception is the caller's exception."""
    try:
        demo.shop.order("pen", 20_000)
    except OutOfStock as raised:
        return f"{type(raised).__name__}: article={raised.article!r}, left={raised.left}"
    raise AssertionError("nothing was raised")


def kill_during_a_call(demo: Demo) -> str:
    """The server dies with a request in its hands."""
    killer = threading.Timer(0.3, demo.kill_server)
    killer.start()
    begun = time.perf_counter()
    try:
        demo.shop.order_slowly("pen")
    except system.COMM_FAILURE as told:
        killer.join()
        return f"after {time.perf_counter() - begun:.1f} s: {told}"
    raise AssertionError("the call was answered")


def call_nobody(demo: Demo) -> str:
    """The server is gone."""
    begun = time.perf_counter()
    try:
        demo.shop.order("pen", 1)
    except system.TRANSIENT as told:
        return f"after {(time.perf_counter() - begun) * 1000:.0f} ms: {told}"
    raise AssertionError("somebody answered")


def call_again(demo: Demo) -> str:
    """The same client, the restarted server."""
    demo.start_server()
    return f"answered: {demo.shop.order('pen', 1):,} left"


def besiege(demo: Demo) -> str:
    """Silent connections, more than stock Pyro5 has places for."""
    with contextlib.ExitStack() as silent:
        for _ in range(SILENT_PEERS):
            peer = socket.create_connection(("127.0.0.1", demo.port), TIMEOUT_S)
            silent.enter_context(peer)
        newcomer = NetworkOrb(timeout_s=TIMEOUT_S)
        begun = time.perf_counter()
        newcomer.proxy(demo.reference, Shop).order("pen", 1)
        milliseconds = (time.perf_counter() - begun) * 1000
        newcomer.close()
    return f"a new client is let in and answered after {milliseconds:.0f} ms"


STEPS: list[tuple[str, Callable[[Demo], str]]] = [
    (f"{CALLS:,} calls to another process", call_often),
    ("the server raises an exception of its contract", raise_remotely),
    ("kill -9 while it works on a call", kill_during_a_call),
    ("a call while it is down", call_nobody),
    ("the same client after the restart", call_again),
    (f"{SILENT_PEERS} connections that never say a word", besiege),
]


@contextlib.contextmanager
def _running() -> Iterator[Demo]:
    demo = Demo()
    demo.start_server()
    try:
        yield demo
    finally:
        demo.kill_server()
        demo.orb.close()


def show() -> None:
    """Runs every step and prints the table."""
    console = Console()
    table = Table(title="OnceMQ so far: contracts, and a guarded door to the network")
    table.add_column("what happens", max_width=32)
    table.add_column("what the caller sees")
    with _running() as demo, console.status("calling, killing, restarting ..."):
        for what, step in STEPS:
            # Escaped: what the caller sees may have brackets, which Rich would take for markup.
            table.add_row(what, escape(step(demo)), end_section=True)
    console.print(table)
    console.print("Queues, transactions and Spark are not here yet: see README.md, 'What exists'.")


def serve(port: int) -> None:
    """The server's process: publishes a shop, says where, and works until it is killed."""
    orb = NetworkOrb(Address("127.0.0.1", port))
    published = orb.publish(ShopServant(), Shop, "shop")
    sys.stdout.write(orb.reference_of(published) + "\n")
    sys.stdout.flush()
    signal.pause()


def main() -> None:
    """`python -m clients.demo` shows; `... serve PORT` is what it starts."""
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]))
    else:
        show()


if __name__ == "__main__":
    main()
