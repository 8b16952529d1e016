"""Everybody in the demo: two servers, a database, and a pipeline in Spark; and who is killed next.

The pipeline is `oncemq pipeline run`, a process as a user would start it. What it says of its
batches is read from its standard error.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import oncemq
from clients.demo.books import TABLE, Books
from clients.demo.processes import EXECUTOR, PYTHON_WORKER, kill, kill_group, offspring
from clients.demo.verdict import PRICE, TAX, Invoice, Verdict, judged
from clients.servers import Server
from clients.spark.java import standard_error_to
from idl.cos import Status

ORDERS, INVOICES, BOOKS = "orders", "invoices", "books"
NODE, COORDINATOR, DRIVER = "node", "coordinator", "Spark driver"
AT_ONCE = 10_000
CALL_S = 10.0
# How soon the servers notice that a driver has died.
SESSION_S = 6.0
SETTLE_S = 30.0
LOOK_S = 0.2
LAST_EVENTS = 6

PIPELINE = """\
[pipeline]
name = "billing"
batch_messages = {batch}
retries = 50

[[source]]
queue = "{orders}"
payload = "json"
schema = "id BIGINT, amount BIGINT"

[[step]]
name = "invoices"
sql = "select id, amount * (100 + {tax}) div 100 as total from orders"

[[sink]]
queue = "{invoices}"
payload = "json"

[[sink]]
table = "{table}"
database = "{books}"
"""


@dataclass
class World:
    """The processes, and what was done to them."""

    folder: Path
    books: Books
    orders: int
    batch: int
    master: str
    chance: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    events: list[tuple[float, str]] = field(default_factory=list)
    batches: int = 0
    retries: int = 0
    _begun_s: float = 0.0
    _servers: dict[str, Server] = field(default_factory=dict)
    _connection: oncemq.Connection | None = None
    _pipeline: subprocess.Popen[bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- Beginning and end

    def start_servers(self) -> None:
        """A coordinator and a node run, and know the database."""
        said = ["--data", str(self.folder / COORDINATOR), "--quiet"]
        said += ["--session-timeout", str(SESSION_S)]
        deciding = Server(COORDINATOR, "coordinator", said, "127.0.0.1:0")
        self._start(deciding)
        self._servers[COORDINATOR] = deciding
        said = ["--data", str(self.folder / NODE), "--quiet"]
        said += ["--coordinator", deciding.address]
        node = Server(NODE, "mqserver", said, "127.0.0.1:0")
        self._start(node)
        self._servers[NODE] = node
        self._connection = oncemq.connect(self.url, timeout=CALL_S)
        self._connection.register_database(BOOKS, self.books.dsn, grace=SESSION_S)

    def _start(self, server: Server) -> None:
        """It listens; what it logs is nothing for this screen."""
        with standard_error_to(self.folder / "servers.log"):
            server.start()

    def fill(self) -> None:
        """The orders are in their queue."""
        queue = self.connection.queue(ORDERS)
        for first in range(0, self.orders, AT_ONCE):
            last = min(first + AT_ONCE, self.orders)
            queue.put_many(
                b'{"id": %d, "amount": %d}' % (number, PRICE + number % 1000)
                for number in range(first, last)
            )

    def start_pipeline(self) -> None:
        """Spark is at work, or will be in a moment."""
        file = self.folder / "billing.toml"
        names = {"orders": ORDERS, "invoices": INVOICES, "table": TABLE, "books": BOOKS}
        file.write_text(PIPELINE.format(batch=self.batch, tax=TAX, **names))
        command = [sys.executable, "-m", "clients.cli", "pipeline", "run", str(file), "--json"]
        command += ["--url", self.url, "--master", self.master]
        command += ["--spark-log", str(self.folder / "spark.log")]
        self._begun_s = self._begun_s or time.monotonic()
        self._pipeline = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(self._pipeline,), daemon=True).start()

    def end(self) -> None:
        """Nothing is left running."""
        self.end_pipeline()
        if self._connection is not None:
            self._connection.close()
        for server in self._servers.values():
            server.kill()

    @property
    def url(self) -> str:
        """Where the node is."""
        return f"mq://{self._servers[NODE].address}"

    @property
    def connection(self) -> oncemq.Connection:
        """The way to the node."""
        assert self._connection is not None
        return self._connection

    # --- What is said

    def seconds(self) -> float:
        """Since Spark was first started."""
        return time.monotonic() - self._begun_s

    def tell(self, event: str) -> None:
        """Something has happened that is worth a line."""
        with self._lock:
            self.events.append((self.seconds(), event))

    def _listen(self, pipeline: subprocess.Popen[bytes]) -> None:
        assert pipeline.stderr is not None
        for line in pipeline.stderr:
            said = line.decode(errors="replace").rstrip()
            if said.startswith("batch "):
                self.batches += 1
            elif said.startswith("rolled back"):
                self.retries += 1
            self.tell(said)

    # --- Killing

    def workers_seen(self) -> bool:
        """Whether Spark has begun to work."""
        pipeline = self._pipeline
        return pipeline is not None and bool(offspring(pipeline.pid)[PYTHON_WORKER])

    def kill(self, kind: str) -> bool:
        """kill -9 of one of this kind, and up again what nobody else starts; False: there is none.

        Spark itself replaces its workers and executors.
        """
        if kind in self._servers:
            self._count(kind)
            self._servers[kind].kill()
            self._start(self._servers[kind])
            return True
        if kind == DRIVER:
            self._count(kind)
            self.end_pipeline()
            self.start_pipeline()
            return True
        assert self._pipeline is not None
        found = offspring(self._pipeline.pid)[kind]
        if not found or not kill(self.chance.choice(found)):
            return False
        self._count(kind)
        return True

    def _count(self, kind: str) -> None:
        self.kills[kind] += 1
        self.tell(f"kill -9 {kind}")

    def end_pipeline(self) -> None:
        """The driver, its Java and its workers are gone, all at once."""
        pipeline = self._pipeline
        if pipeline is None:
            return
        family = [pid for pids in offspring(pipeline.pid).values() for pid in pids]
        # The leader of its group, to which its Java belongs.
        kill_group(pipeline.pid)
        for pid in family:
            kill(pid)
        pipeline.wait()

    def exit_code(self) -> int | None:
        """How the pipeline ended; None while it runs."""
        return None if self._pipeline is None else self._pipeline.poll()

    # --- What is there

    def invoices_in_queue(self) -> int | None:
        """How many can be had; None while the node is away."""
        try:
            return len(self.connection.queue(INVOICES))
        except oncemq.OnceMQError:
            return None

    def settle(self) -> int:
        """How much is still in doubt or under way, after some patience."""
        deadline = time.monotonic() + SETTLE_S
        left = 1
        while left and time.monotonic() < deadline:
            with contextlib.suppress(oncemq.OnceMQError):
                branches = self.connection.admin().listBranches()
                left = sum(info.state in (Status.ACTIVE, Status.PREPARED) for info in branches)
                if not left:
                    return 0
            time.sleep(LOOK_S)
        return left

    def verdict(self, seconds: float) -> Verdict:
        """Everything counted, one by one."""
        in_doubt = self.settle()
        return Verdict(
            orders=self.orders,
            queue=judged(self.orders, self._queued()),
            table=judged(self.orders, self.books.invoices()),
            orders_left=len(self.connection.queue(ORDERS)),
            in_doubt=in_doubt,
            kills=dict(self.kills),
            batches=self.batches,
            retries=self.retries,
            seconds=seconds,
        )

    def _queued(self) -> Iterator[Invoice]:
        for message in self.connection.queue(INVOICES).browse(limit=None):
            said = json.loads(message.payload)
            yield Invoice(said["id"], said["total"])


def victims(chance: random.Random, has_executors: bool) -> Iterator[str]:
    """Who is killed next: all kinds equally often, in an order that nobody knows."""
    kinds = [PYTHON_WORKER, NODE, PYTHON_WORKER, COORDINATOR]
    if has_executors:
        kinds.append(EXECUTOR)
    while True:
        chance.shuffle(kinds)
        yield from kinds
