"""Judges what clients saw: every transaction once and as a whole, or not at all. Pure.

The histories are those of `tests/history_events.py`. Ids are unique, therefore nothing is searched
for: the work grows with the number of events.

What is shown, by `judge`, of these histories and of what is left in the end (`Left`):

- *lost*, *duplicate*: each message of a committed transaction is in its queue in the end, or was
  got by exactly one transaction that happened.
- *rolled back*: nothing of a rolled back transaction was ever seen, nor of one whose end was never
  asked for.
- *dirty*: nobody has got a message before its transaction began to end.
- *half*: an unknown transaction, whose client was killed or not told, happened on all nodes and
  queues or on none: its puts are there if and only if its gets are gone. Which of the two is found
  by evidence: what it put was seen; or, if it put nothing, what it got is gone and nobody else has
  it.
- *resurrected*: what a transaction that happened has got is seen by nobody after that answer:
  until its commit it was locked, since then it is gone.
- *altered*, *phantom*, *misrouted*: a message is the one that was put, and where it was put.
- *order*, *passed over*: see `tests/history_order.py`.
- *left over*: no lock, no branch in doubt, no undecided transaction, nothing in the decision log.

Not decided: two unknown transactions that only got, whose gets of the same message overlapped in
time; either may have happened. Not seen: messages got outside of transactions (autocommit).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.history_events import COMMITTED, UNKNOWN, Get, Put, Seen, Transaction


@dataclass
class Left:
    """What is there when everything has come to rest: queues in their order, and all that waits."""

    queues: Mapping[str, Sequence[Seen]]
    locked: Mapping[str, int] = field(default_factory=dict)
    branches: Sequence[str] = ()
    undecided: Sequence[str] = ()


class Complaint(NamedTuple):
    """What is wrong, with which transaction and which message."""

    kind: str
    transaction: str
    message: str
    text: str

    def __str__(self) -> str:
        where = f"transaction {self.transaction or '-'}, message {self.message or '-'}"
        return f"{self.kind}: {where}: {self.text}"


def judge(transactions: Sequence[Transaction], left: Left) -> list[Complaint]:
    """All that is wrong, except with the order."""
    return _Judgement(transactions, left).complaints()


class _Judgement:
    def __init__(self, transactions: Sequence[Transaction], left: Left) -> None:
        self._transactions = transactions
        self._left = left
        self._found: list[Complaint] = []
        self._puts = {put.message: put for each in transactions for put in each.puts}
        assert len(self._puts) == sum(len(t.puts) for t in transactions), "an id was used twice"
        self._gets: dict[str, list[Get]] = defaultdict(list)
        for get in (get for each in transactions for get in each.gets):
            for seen in get.messages:
                self._gets[seen.message].append(get)
        self._places: dict[str, list[str]] = defaultdict(list)
        for queue, content in left.queues.items():
            for seen in content:
                self._places[seen.message].append(queue)

    def complaints(self) -> list[Complaint]:
        self._look_at_what_was_seen()
        self._happened = _Evidence(self._transactions, self._puts, self._gets, self._places).weigh()
        for put in self._puts.values():
            if self._happened[put.transaction]:
                self._judge_message(put)
            else:
                self._judge_ghost(put)
        self._look_at_what_is_left()
        return self._found

    def _complain(self, kind: str, who: Transaction | None, message: str, text: str) -> None:
        self._found.append(Complaint(kind, who.name if who else "", message, text))

    # --- Each message as it was seen

    def _look_at_what_was_seen(self) -> None:
        for each in self._transactions:
            for get in each.gets:
                for seen in get.messages:
                    self._look(seen, get.queue, f"got by {each.name}", get)
        for queue, content in self._left.queues.items():
            for seen in content:
                self._look(seen, queue, "there in the end", None)

    def _look(self, seen: Seen, queue: str, how: str, get: Get | None) -> None:
        put = self._puts.get(seen.message)
        if put is None:
            who = get.transaction if get else None
            self._complain("phantom", who, seen.message, f"{how}, in {queue}, and nobody put it")
            return
        if put.digest != seen.digest:
            self._complain("altered", put.transaction, seen.message, f"{how} with other content")
        if put.queue != queue:
            text = f"put into {put.queue}, {how} in {queue}"
            self._complain("misrouted", put.transaction, seen.message, text)
        ending_at = put.transaction.ending_at
        if get is not None and ending_at is not None:
            assert get.answered_at is not None
            if get.answered_at < ending_at:
                text = f"{how} before its transaction began to end"
                self._complain("dirty", put.transaction, seen.message, text)

    # --- Each message that was put

    def _judge_message(self, put: Put) -> None:
        """Of a transaction that happened: the message is there once, or was got once."""
        gets = self._gets[put.message]
        takers = [get for get in gets if self._happened[get.transaction]]
        places = self._places[put.message]
        # Where the evidence leaves open which of several it was, it was one of them.
        is_open = any(self._happened[get.transaction] is None for get in gets)
        if not takers and not places and not is_open:
            self._judge_missing(put, gets)
        for taker in takers:
            self._judge_later(put, taker, gets)
            if places:
                kind = "half" if taker.transaction.told == UNKNOWN else "resurrected"
                text = f"put by {put.transaction.name}, got by {taker.transaction.name}, and back"
                self._complain(kind, taker.transaction, put.message, f"{text} in {places[0]}")
        if len(takers) > 1:
            names = " and ".join(get.transaction.name for get in takers)
            text = f"put by {put.transaction.name}, got by {names}, which all happened"
            self._complain("duplicate", takers[-1].transaction, put.message, text)
        if len(places) > 1:
            text = f"{len(places)} times there in the end, in {', '.join(places)}"
            self._complain("duplicate", put.transaction, put.message, text)

    def _judge_missing(self, put: Put, gets: Sequence[Get]) -> None:
        halves = [get.transaction for get in gets if get.transaction.outcome == UNKNOWN]
        if halves:
            text = f"got by {halves[-1].name}, the rest of which did not happen, and gone"
            self._complain("half", halves[-1], put.message, text)
        elif put.transaction.outcome == UNKNOWN:
            text = f"not in {put.queue}, while the rest of its transaction happened"
            self._complain("half", put.transaction, put.message, text)
        else:
            text = f"put into {put.queue}, committed, and neither there nor got"
            self._complain("lost", put.transaction, put.message, text)

    def _judge_later(self, put: Put, taker: Get, gets: Sequence[Get]) -> None:
        assert taker.answered_at is not None
        for later in gets:
            if later.asked_at > taker.answered_at and not self._happened[later.transaction]:
                text = f"got by {taker.transaction.name}, which happened; later once more"
                self._complain("resurrected", later.transaction, put.message, text)

    def _judge_ghost(self, put: Put) -> None:
        """Of a transaction that has not happened: nobody has seen the message."""
        gets = self._gets[put.message]
        if gets or self._places[put.message]:
            how = f"got by {gets[0].transaction.name}" if gets else "there in the end"
            text = f"its transaction was rolled back, and it was {how}"
            self._complain("rolled back", put.transaction, put.message, text)

    # --- The rest

    def _look_at_what_is_left(self) -> None:
        for queue, number in self._left.locked.items():
            if number:
                self._complain("left over", None, "", f"{number} messages of {queue} are locked")
        for name in self._left.branches:
            self._complain("left over", None, "", f"branch {name} has not ended")
        for name in self._left.undecided:
            self._complain("left over", None, "", f"the coordinator still knows {name}")


class _Evidence:
    """Whether each transaction happened; None where nothing decides between several."""

    def __init__(
        self,
        transactions: Sequence[Transaction],
        puts: Mapping[str, Put],
        gets: Mapping[str, Sequence[Get]],
        places: Mapping[str, Sequence[str]],
    ) -> None:
        self._puts = puts
        self._gets = gets
        self._places = places
        self._transactions = transactions
        self._happened: dict[Transaction, bool | None] = {}

    def weigh(self) -> dict[Transaction, bool | None]:
        for each in self._transactions:
            if each.outcome != UNKNOWN:
                self._happened[each] = each.outcome == COMMITTED
            elif each.puts:
                self._happened[each] = any(self._was_seen(put.message) for put in each.puts)
            else:
                self._happened[each] = None
        open_ones = [each for each in self._transactions if self._happened[each] is None]
        for each in open_ones:
            if self._is_refuted(each):
                self._happened[each] = False
        waiting = [seen.message for each in open_ones for get in each.gets for seen in get.messages]
        while waiting:
            waiting += self._decide(waiting.pop())
        return self._happened

    def _was_seen(self, message: str) -> bool:
        return bool(self._gets.get(message) or self._places.get(message))

    def _is_refuted(self, transaction: Transaction) -> bool:
        """Whether something that it got was to be had by others afterwards."""
        for get in transaction.gets:
            assert get.answered_at is not None or not get.messages
            for seen in get.messages:
                others = [o for o in self._gets[seen.message] if o.transaction is not transaction]
                if self._places.get(seen.message) or any(
                    self._happened[other.transaction] or other.asked_at > (get.answered_at or 0)
                    for other in others
                ):
                    return True
        return False

    def _decide(self, message: str) -> list[str]:
        """Who alone can have a message has it; what is to be looked at again because of it."""
        if self._places.get(message):
            return []
        takers = {get.transaction: None for get in self._gets[message]}
        open_ones = [each for each in takers if self._happened[each] is None]
        if not open_ones:
            return []
        if any(self._happened[each] for each in takers):
            changed = open_ones
            self._happened |= dict.fromkeys(open_ones, False)
        elif len(open_ones) == 1:
            changed = open_ones
            self._happened[open_ones[0]] = True
        else:
            return []
        return [seen.message for each in changed for get in each.gets for seen in get.messages]
