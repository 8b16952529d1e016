"""A channel, the ends of it that principals have obtained, and an event as it travels.

Only what they are; what happens with them is in `switchboard` and `delivery`.
"""

from __future__ import annotations

import enum
import threading

from mqserver.events.feed import Entry, Feed
from mqserver.queues import key_text


class Kind(enum.Enum):
    """What is at an end of a channel."""

    PUSH_CONSUMER = "push consumer"
    PULL_CONSUMER = "pull consumer"
    PUSH_SUPPLIER = "push supplier"
    PULL_SUPPLIER = "pull supplier"


class Channel:
    """One channel: the queues and groups that it hears of, and its ends."""

    def __init__(self, name: str, creator: str, now: float) -> None:
        self.name = name
        self.creator = creator
        self.groups: dict[str, set[int]] = {}
        self.ends: dict[End, None] = {}
        self.used_at = now


class End:
    """One end of a channel. Its fields belong to the switchboard; whoever serves it has the rest.

    `peer` is whom to push to, to pull from, or to tell of the end; None where nobody is to be told.
    """

    def __init__(
        self,
        kind: Kind,
        channel: Channel,
        principal: str,
        feed: Feed | None,
        wake: threading.Condition,
        now: float,
    ) -> None:
        self.kind = kind
        self.channel = channel
        self.principal = principal
        self.feed = feed
        self.wake = wake
        self.peer: object | None = None
        self.is_connected = False
        self.is_ended = False
        self.is_scheduled = False
        self.heard_at = now
        self.waiting = 0
        self.answered: tuple[bytes, object] | None = None
        # Of whoever serves it, one thread at a time. A newcomer has to show that it is quick.
        self.failures = 0
        self.is_slow = True
        self.pause_s = 0.0


def event_of(entry: Entry) -> object:
    """The event as it travels: queue, key and group, the key being empty when it says "look"."""
    if entry.own is not None:
        return entry.own[0]
    return (entry.queue, key_text(entry.key) if entry.key else "", entry.group)


def bytes_of(event: object) -> int:
    """About how much memory an event takes."""
    match event:
        case str() | bytes():
            return 16 + len(event)
        case tuple():
            return 16 + sum(map(bytes_of, event))
        case dict():
            return 16 + sum(bytes_of(key) + bytes_of(value) for key, value in event.items())
    return 16
