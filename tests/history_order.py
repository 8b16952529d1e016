"""Judges in which order messages came: first in, first out, as far as clients can know it. Pure.

A client writes one transaction after the other, so what it puts into a queue has an order. Where
that order must be seen again, and where not:

- *order*: in what is left in a queue in the end, the messages of one writer are in the order in
  which they were put. Always, but for messages of an unknown transaction: what its client gave up
  waiting for may have reached the node late. So it is in one answer to a get of several messages,
  as far as they were certainly there.
- *passed over*: a get must not bring a message while an earlier one of the same writer is
  certainly there.

Certainly there is one that was committed in one phase before the get was asked for, and that
nobody was ever given before this get was answered. What was once given to somebody counts as
perhaps held from then on: its transaction may be in doubt, or its rollback not have arrived. So
does what was committed in two phases until somebody has got it: a client is told "committed" when
that is decided, and a node that was down at that moment hears it later. And a get without an
answer, whose client was killed or cut off, may hold as many messages as it asked for, until its
branch is given up: at the next restart of its node, or after `release_ns`. So may one that was
answered behind a restart, until that: its client has asked again, and was given others. By so many
a get may pass. With several consumers nothing more is promised: who rolls back makes a message come
later, and each consumer alone sees an order only of what the others leave it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sortedcontainers import SortedDict

from tests.history import Complaint, Left
from tests.history_events import COMMITTED, Get, Put, Seen, Transaction


@dataclass
class Times:
    """What the clients cannot know: when nodes were killed and when clients were.

    `restarts` are in order, by node; `deaths` by writer. A branch of which nothing is heard is
    given up after `release_ns`, at the latest.
    """

    restarts: dict[str, list[int]] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)
    release_ns: int = 60_000_000_000


class Judged(NamedTuple):
    """The complaints, and how many gets could be judged at all."""

    complaints: list[Complaint]
    gets: int


def judge_order(transactions: Sequence[Transaction], left: Left, times: Times) -> Judged:
    """All that is wrong with the order."""
    puts = {put.message: put for each in transactions for put in each.puts}
    found: list[Complaint] = []
    gets = [get for each in transactions for get in each.gets]
    for queue, content in left.queues.items():
        found += _out_of_order(puts, content, f"in {queue} in the end")
    passing = _Passing(puts, gets, times)
    found += passing.judge()
    return Judged(found, passing.judged)


def _out_of_order(
    puts: Mapping[str, Put], content: Iterable[Seen], where: str
) -> Iterable[Complaint]:
    latest: dict[str, Put] = {}
    for seen in content:
        put = puts.get(seen.message)
        if put is None or put.transaction.outcome != COMMITTED:
            continue
        writer = put.transaction.writer
        before = latest.get(writer)
        if before is not None and before.number > put.number:
            text = f"{where} it comes behind {before.message}, which was put later"
            yield Complaint("order", put.transaction.name, put.message, text)
        else:
            latest[writer] = put


# What happens at one moment; of those at the same one, in this order: doubt counts for the system.
_TAKEN, _HIDDEN, _ASKED, _ANSWERED, _FREED, _THERE = range(6)


class _Passing:
    """Walks through all times at once, and knows what is certainly there at each."""

    def __init__(self, puts: Mapping[str, Put], gets: Sequence[Get], times: Times) -> None:
        self._puts = puts
        self._gets = gets
        self._times = times
        self.judged = 0
        # By queue and writer: the certain ones by number, with the time since when.
        self._there: dict[tuple[str, str], SortedDict[int, tuple[int, str]]]
        self._there = defaultdict(SortedDict)
        # By queue: how many messages those may have taken who were never answered, and how many
        # were given back since.
        self._hidden: dict[str, int] = defaultdict(int)
        self._freed: dict[str, int] = defaultdict(int)
        self._freed_before: dict[int, int] = {}
        self._first_asked: dict[str, int] = {}

    def judge(self) -> list[Complaint]:
        found: list[Complaint] = []
        for at, kind, _, what in sorted(self._moments(), key=lambda moment: moment[:3]):
            if isinstance(what, Put):
                there = self._there[what.queue, what.transaction.writer]
                if kind == _THERE:
                    there[what.number] = (at, what.message)
                else:
                    there.pop(what.number, None)
            elif kind == _ASKED:
                self._freed_before[id(what)] = self._freed[what.queue]
            elif kind == _ANSWERED:
                found += self._passed_over(what)
            elif kind == _HIDDEN:
                self._hidden[what.queue] += what.count
            else:
                self._freed[what.queue] += what.count
        return found

    def _moments(self) -> Iterable[tuple[int, int, int, Put | Get]]:
        first_asked = self._first_asked
        for number, get in enumerate(self._gets):
            for seen in get.messages:
                asked_at = min(first_asked.get(seen.message, get.asked_at), get.asked_at)
                first_asked[seen.message] = asked_at
            if get.answered_at is not None:
                yield get.asked_at, _ASKED, number, get
                yield get.answered_at, _ANSWERED, number, get
                restarts = self._times.restarts.get(get.node, ())
                lives = bisect_right(restarts, get.answered_at)
                if lives and restarts[lives - 1] >= get.asked_at:
                    yield get.asked_at, _HIDDEN, number, get
                    yield restarts[lives - 1], _FREED, number, get
            else:
                yield get.asked_at, _HIDDEN, number, get
                yield self._freed_at(get), _FREED, number, get
        for number, put in enumerate(self._puts.values()):
            transaction = put.transaction
            if not _is_certain(transaction) or transaction.ended_at is None:
                continue
            taken_at = first_asked.get(put.message)
            if taken_at is None or taken_at > transaction.ended_at:
                yield transaction.ended_at, _THERE, number, put
                if taken_at is not None:
                    yield taken_at, _TAKEN, number, put

    def _freed_at(self, get: Get) -> int:
        """When the branch of a get that was never answered is certainly given up."""
        transaction = get.transaction
        over_at = transaction.ended_at or self._times.deaths.get(transaction.writer)
        if over_at is None:
            return 1 << 63
        restarts = self._times.restarts.get(get.node, ())
        after = bisect_right(restarts, over_at)
        latest = over_at + self._times.release_ns
        return min(restarts[after], latest) if after < len(restarts) else latest

    def _passed_over(self, get: Get) -> Iterable[Complaint]:
        self.judged += bool(get.messages)
        # Held at any moment between question and answer.
        hidden = self._hidden[get.queue] - self._freed_before[id(get)]
        within = list(
            _out_of_order(self._puts, self._fresh(get), f"got by {get.transaction.name},")
        )
        if len(within) > hidden:
            yield from within
        for seen in get.messages:
            put = self._puts.get(seen.message)
            if put is None or put.transaction.outcome != COMMITTED:
                continue
            there = self._there[get.queue, put.transaction.writer]
            earlier = list(there.irange(maximum=put.number, inclusive=(True, False)))
            certain = [n for n in earlier if there[n][0] < get.asked_at]
            if len(certain) > hidden:
                name = get.transaction.name
                text = f"{name} got {seen.message} of the same writer, which was put later"
                message = there[certain[0]][1]
                who = self._puts[message].transaction.name
                yield Complaint("passed over", who, message, text)

    def _fresh(self, get: Get) -> Iterable[Seen]:
        """Of what was got, that which was certainly there when it was asked for."""
        for seen in get.messages:
            put = self._puts.get(seen.message)
            if put is not None and _is_certain(put.transaction):
                is_first = self._first_asked[seen.message] == get.asked_at
                if is_first and (put.transaction.ended_at or 0) < get.asked_at:
                    yield seen


def _is_certain(transaction: Transaction) -> bool:
    """Whether its messages were there when its client was told that it is committed."""
    return transaction.outcome == COMMITTED and len(transaction.nodes) == 1
