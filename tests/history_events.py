"""What a client says it does, and what it is told: the lines of a history, written and read. Pure.

Each client writes what it does, one JSON line per event, *before* it does it, and the answer as
soon as it has it; so a client that is killed leaves a history that is true. All times come from
one clock that only goes forward. A client has one transaction at a time, and every message that is
put has an id of its own.

    {"do": "begin", "tx": T, "at": ns}
    {"do": "put", "tx": T, "at": ns, "node": N, "queue": Q, "id": M, "digest": D}     will be put
    {"do": "getting", "tx": T, "at": ns, "node": N, "queue": Q, "count": n}         is asked for
    {"do": "got", "tx": T, "at": ns, "messages": [[M, D], …]}                         the answer
    {"do": "ending", "tx": T, "at": ns, "otid": O}                         will be asked to commit
    {"do": "end", "tx": T, "at": ns, "outcome": "committed" | "rolled back" | "unknown"}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

COMMITTED, ROLLED_BACK, UNKNOWN = "committed", "rolled back", "unknown"


class Seen(NamedTuple):
    """A message as somebody saw it."""

    message: str
    digest: int


@dataclass(frozen=True)
class Put:
    """A message that a transaction will put; `number` is its place among its writer's."""

    transaction: Transaction
    number: int
    node: str
    queue: str
    message: str
    digest: int


@dataclass
class Get:
    """Messages that were asked for; without an answer nobody knows which were taken."""

    transaction: Transaction
    node: str
    queue: str
    count: int
    asked_at: int
    answered_at: int | None = None
    messages: list[Seen] = field(default_factory=list)


@dataclass(eq=False)
class Transaction:
    """What one client did between begin and end, and what it was told."""

    name: str
    writer: str
    ending_at: int | None = None
    ended_at: int | None = None
    told: str = UNKNOWN
    otid: str = ""
    puts: list[Put] = field(default_factory=list)
    gets: list[Get] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """What it was told; one whose end was never asked for cannot have been committed."""
        return ROLLED_BACK if self.ending_at is None else self.told

    @property
    def nodes(self) -> set[str]:
        """Where it worked."""
        return {put.node for put in self.puts} | {get.node for get in self.gets}


class Scribe:
    """Writes the history of one client; `write` has the line out of the process when it returns."""

    def __init__(self, write: Callable[[str], object], clock_ns: Callable[[], int]) -> None:
        self._write = write
        self._clock_ns = clock_ns

    def begin(self, transaction: str) -> None:
        """A transaction begins."""
        self._say("begin", transaction)

    def put(self, transaction: str, node: str, queue: str, seen: Seen) -> None:
        """The message will be put."""
        message, digest = seen
        self._say("put", transaction, node=node, queue=queue, id=message, digest=digest)

    def getting(self, transaction: str, node: str, queue: str, count: int) -> None:
        """So many messages will be asked for."""
        self._say("getting", transaction, node=node, queue=queue, count=count)

    def got(self, transaction: str, messages: Iterable[Seen]) -> None:
        """They have come."""
        self._say("got", transaction, messages=list(messages))

    def ending(self, transaction: str, otid: str = "") -> None:
        """The transaction will be asked to commit: from now on it may be committed.

        `otid` is the name by which its outcome can be asked for, where it has one.
        """
        self._say("ending", transaction, otid=otid)

    def end(self, transaction: str, outcome: str) -> None:
        """The client was told how it ended, or that this is not known."""
        self._say("end", transaction, outcome=outcome)

    def _say(self, what: str, transaction: str, **details: object) -> None:
        event = {"do": what, "tx": transaction, "at": self._clock_ns(), **details}
        self._write(json.dumps(event) + "\n")


def read(writer: str, lines: Iterable[str]) -> list[Transaction]:
    """The transactions of one client, in their order, from the lines that it wrote.

    A last line that is not whole belongs to an act that was not begun: it is left out.
    """
    found: dict[str, Transaction] = {}
    numbers: Counter[str] = Counter()
    for line in lines:
        if not line.endswith("\n"):
            break
        event = json.loads(line)
        name, at = event["tx"], event["at"]
        match event["do"]:
            case "begin":
                assert name not in found, f"{name} begins twice"
                found[name] = Transaction(name, writer)
            case "put":
                queue = event["queue"]
                numbers[queue] += 1
                what = (event["node"], queue, event["id"], event["digest"])
                found[name].puts.append(Put(found[name], numbers[queue], *what))
            case "getting":
                where = (event["node"], event["queue"], event["count"])
                found[name].gets.append(Get(found[name], *where, at))
            case "got":
                last = found[name].gets[-1]
                last.answered_at = at
                last.messages = [Seen(message, digest) for message, digest in event["messages"]]
            case "ending":
                found[name].ending_at, found[name].otid = at, event["otid"]
            case "end":
                found[name].ended_at, found[name].told = at, event["outcome"]
    return list(found.values())
