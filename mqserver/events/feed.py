"""What one consumer is still to hear: what was there before it came, then what arrives; pure.

An event is a hint, the queue is the truth. It names a message by queue, key and group. One without
a key says "look": something may be there, read the queue. One without a queue says so of all of
them, and that events of the channel's other suppliers may have been lost.

What was there is a backlog, of which only one page at a time is in memory. What holds:

1. Whatever becomes visible is heard of: either a page shows it, or it arrives where no page will
   show it any more. What arrives while a page is being read is kept until the page is there.
2. The buffer is bounded. When it is full it is emptied, and one look for each queue stands for it.
3. A look that is still to be heard stands for all of its queue that arrives before it is heard.
4. A message is in at most one backlog, so that it is not heard of twice without a reason.

The caller sees to it that one thread at a time is in here. This module knows no channel, no
storage and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

EVERYWHERE = ""
PAGE_FIRST = 4


class Entry(NamedTuple):
    """One event: a message, a look (key 0), or what a supplier of its own handed to the channel."""

    queue: str
    key: int = 0
    group: int = 0
    own: tuple[object] | None = None

    @property
    def is_look(self) -> bool:
        """Whether it tells to look, and names no message."""
        return self.key == 0 and self.own is None


class Page(NamedTuple):
    """What is to be read next: messages of the queue behind this key, at most so many."""

    queue: str
    after: int
    limit: int


class Seen(NamedTuple):
    """A message that a page showed."""

    key: int
    group: int


@dataclass
class _Backlog:
    """What was there of the groups `new`, but for what the groups `known` let be heard before."""

    queue: str
    new: frozenset[int]
    known: frozenset[int]
    limit: int
    after: int = 0
    is_being_read: bool = False
    # What arrived while a page was being read.
    meanwhile: list[Seen] = field(default_factory=list)

    def covers(self, group: int) -> bool:
        return is_wanted(self.new, group) and not is_wanted(self.known, group)


def is_wanted(groups: Collection[int], group: int) -> bool:
    """Whether consumers of these groups hear of a message of this group: 0 is all, both ways."""
    return bool(groups) and (group == 0 or group in groups or 0 in groups)


class Feed:
    """The events that one consumer is still to hear, in order."""

    def __init__(self, events_max: int, page_max: int) -> None:
        self._events_max = events_max
        self._page_max = page_max
        self._groups: dict[str, frozenset[int]] = {}
        self._backlogs: deque[_Backlog] = deque()
        # What the last page showed comes before the buffer: first what was there, then the new.
        self._shown: deque[Entry] = deque()
        self._buffer: deque[Entry] = deque()
        self._looks: set[str] = set()

    def subscribe(self, queue: str, group: int) -> None:
        """The consumer hears of this group, from what is there already on."""
        known = self._groups.get(queue, frozenset())
        if group in known or 0 in known:
            return
        self._groups[queue] = known | {group}
        limit = min(PAGE_FIRST, self._page_max)
        self._backlogs.append(_Backlog(queue, frozenset({group}), known, limit))

    # --- What arrives

    def arrived(self, queue: str, messages: Iterable[Seen]) -> None:
        """These messages became visible."""
        groups = self._groups.get(queue)
        if groups is None:
            return
        for key, group in messages:
            if queue in self._looks:
                return
            if is_wanted(groups, group) and not self._will_be_shown(queue, key, group):
                self._add(Entry(queue, key, group))

    def look(self, queue: str) -> None:
        """Something may be in the queue."""
        if queue == EVERYWHERE or queue in self._groups:
            self._add_look(queue)

    def add(self, event: object) -> None:
        """A supplier's own event."""
        self._add(Entry(EVERYWHERE, own=(event,)))

    def _will_be_shown(self, queue: str, key: int, group: int) -> bool:
        for backlog in self._backlogs:
            if backlog.queue == queue and backlog.covers(group):
                if key <= backlog.after:
                    return False
                if backlog.is_being_read:
                    self._keep_meanwhile(backlog, Seen(key, group))
                return True
        return False

    def _keep_meanwhile(self, backlog: _Backlog, seen: Seen) -> None:
        backlog.meanwhile.append(seen)
        if len(backlog.meanwhile) > self._events_max:
            backlog.meanwhile.clear()
            self._add_look(backlog.queue)

    def _add(self, entry: Entry) -> None:
        if len(self._buffer) >= self._events_max:
            self._overflow()
            if entry.queue in self._looks:
                return
        self._buffer.append(entry)

    def _overflow(self) -> None:
        queues = dict.fromkeys(entry.queue for entry in self._buffer)
        self._buffer.clear()
        self._looks.clear()
        for queue in queues:
            self._add_look(queue)

    def _add_look(self, queue: str) -> None:
        if queue not in self._looks:
            self._looks.add(queue)
            self._buffer.append(Entry(queue))

    # --- What is heard

    def take(self) -> Entry | None:
        """The next event, which is heard with this; None when a page must be read, or all is."""
        if self._shown:
            return self._shown.popleft()
        if self._backlogs or not self._buffer:
            return None
        entry = self._buffer.popleft()
        if entry.is_look:
            self._looks.discard(entry.queue)
        return entry

    def give_back(self, entry: Entry) -> None:
        """The event was not heard after all, and is the next again."""
        self._shown.appendleft(entry)

    def has_news(self) -> bool:
        """Whether there is something to be heard, or to be read for that."""
        if self._shown:
            return True
        return bool(self._backlogs or self._buffer) and not self._is_being_read()

    def __len__(self) -> int:
        return len(self._shown) + len(self._buffer)

    # --- What was there before

    def begin_page(self) -> Page | None:
        """What is to be read; the caller reads it and calls `end_page`, whatever happens."""
        if self._shown or not self._backlogs or self._is_being_read():
            return None
        backlog = self._backlogs[0]
        backlog.is_being_read = True
        return Page(backlog.queue, backlog.after, backlog.limit)

    def end_page(self, messages: Sequence[Seen], is_small: bool) -> None:
        """The page shows these messages; where it was small, the next may be larger."""
        backlog = self._backlogs[0]
        assert backlog.is_being_read, "a page is begun before it is ended"
        backlog.is_being_read = False
        is_last = len(messages) < backlog.limit
        if messages:
            backlog.after = messages[-1].key
        self._shown.extend(
            Entry(backlog.queue, key, group) for key, group in messages if backlog.covers(group)
        )
        self._resize(backlog, is_small)
        if is_last:
            self._backlogs.popleft()
        self._add_missed(backlog, {key for key, _ in messages}, is_last)

    def give_up_backlog(self) -> None:
        """What was there cannot be read: the consumer is to look for itself."""
        queue = self._backlogs.popleft().queue
        self._add_look(queue)

    def _add_missed(self, backlog: _Backlog, shown: set[int], is_last: bool) -> None:
        for key, group in backlog.meanwhile:
            is_behind = is_last or key <= backlog.after
            if is_behind and key not in shown and backlog.queue not in self._looks:
                self._add(Entry(backlog.queue, key, group))
        backlog.meanwhile.clear()

    def _resize(self, backlog: _Backlog, is_small: bool) -> None:
        if is_small:
            backlog.limit = min(2 * backlog.limit, self._page_max)
        else:
            backlog.limit = max(backlog.limit // 2, 1)

    def _is_being_read(self) -> bool:
        return bool(self._backlogs) and self._backlogs[0].is_being_read
