"""The channels of a node and their ends: who is connected to what, and what each is to hear.

An end is what a principal has obtained from a channel: a consumer or a supplier, push or pull. What
holds:

1. Whoever commits does not wait: `arrived` appends and returns. What has arrived is handed to the
   consumers later, and always before one of them reads on in what was there.
2. A consumer is subscribed before it reads what was there. So each message is either there when
   the queue is read, or arrives afterwards.
3. A consumer hears of a queue only if its principal may browse that queue.
4. No call leaves this module while the lock is held: neither to the storage nor to a consumer.

It pushes nothing itself and starts no thread: `Hooks` are told what there is to do. It knows
neither references nor how an end looks from outside.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from idl import system
from idl.cos import AlreadyConnected, Disconnected
from mqserver.arrivals import Arrival
from mqserver.errors import MqError, QueueNotFound
from mqserver.events.ends import Channel, End, Kind, bytes_of, event_of
from mqserver.events.feed import EVERYWHERE, Entry, Feed, Page, Seen
from mqserver.events.inbox import Inbox
from mqserver.events.settings import EventSettings
from mqserver.storage.contract import EVERYTHING, Storage

PAGES_AT_ONCE = 8


class Hooks(NamedTuple):
    """Who is told what there is to do; the first three must not wait, nor call back."""

    # Something has arrived: `distribute` is due.
    arrived: Callable[[], None]
    # A push consumer has something to hear, or a pull supplier is to be asked.
    ready: Callable[[End], None]
    # There is a channel: `sweep` is due from time to time.
    opened: Callable[[], None]
    # The end is over; its peer, if any, has not been told.
    ended: Callable[[End], None]
    # There is no channel with this name any more.
    dropped: Callable[[str], None]


class Switchboard:
    """All channels of a node. May be used from any thread."""

    def __init__(
        self,
        storage: Storage,
        settings: EventSettings,
        clock: Callable[[], float],
        hooks: Hooks,
        may_browse: Callable[[str, str], bool],
        make_condition: Callable[[threading.Lock], threading.Condition] = threading.Condition,
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._hooks = hooks
        self._may_browse = may_browse
        self._make_condition = make_condition
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}
        # Read without the lock by whoever commits.
        self._watched: dict[str, dict[Channel, None]] = {}
        # The queues of which some channel hears.
        self.queues: Container[str] = self._watched
        self._ends_of: dict[str, int] = {}
        self._is_closed = False
        self._inbox = Inbox(settings.inbox_max)

    # --- Channels and ends

    def open(self, name: str, principal: str) -> None:
        """There is a channel with this name; the principal has made it if there was none."""
        with self._lock:
            self._open(name, principal)

    def creator_of(self, name: str) -> str | None:
        """Who made the channel; None where there is none."""
        with self._lock:
            channel = self._channels.get(name)
            return None if channel is None else channel.creator

    def start_notify(self, name: str, queue: str, group: int, principal: str) -> None:
        """The channel hears of the group's messages in the queue: those there, and all that come.

        What it hears of already is told to nobody again.
        """
        with self._lock:
            channel = self._open(name, principal)
            groups = channel.groups.get(queue, set())
            if group in groups:
                return
            count = sum(len(known) for known in channel.groups.values())
            _check_limit(
                count,
                self._settings.subscriptions_per_channel_max,
                f"channel {name!r} hears of {count} queues and groups: use another channel",
            )
            # What has arrived till now is there when the queue is read.
            self._distribute()
            channel.groups.setdefault(queue, set()).add(group)
            self._watched.setdefault(queue, {})[channel] = None
            for end in channel.ends:
                self._subscribe(end, queue, group)
                self._wake(end)

    def obtain(self, kind: Kind, name: str, principal: str) -> End:
        """A new end of the channel, which belongs to the principal and is not yet connected."""
        settings = self._settings
        with self._lock:
            channel = self._open(name, principal)
            count = len(channel.ends)
            _check_limit(
                count,
                settings.ends_per_channel_max,
                f"channel {name!r} has {count} consumers and suppliers: use another channel",
            )
            count = self._ends_of.get(principal, 0)
            _check_limit(
                count,
                settings.ends_per_principal_max,
                f"{principal} holds {count} ends of channels: disconnect those not needed",
            )
            is_consumer = kind in (Kind.PUSH_CONSUMER, Kind.PULL_CONSUMER)
            feed = Feed(settings.events_max, settings.page_max) if is_consumer else None
            wake = self._make_condition(self._lock)
            end = End(kind, channel, principal, feed, wake, self._clock())
            channel.ends[end] = None
            self._ends_of[principal] = count + 1
            return end

    def connect(self, end: End, peer: object | None) -> None:
        """The end is in use. A consumer hears of all that is there, and of all that comes."""
        with self._lock:
            if end.is_ended:
                raise system.OBJECT_NOT_EXIST("this end of the channel is over: obtain another")
            if end.is_connected:
                raise AlreadyConnected()
            end.is_connected = True
            end.peer = peer
            end.heard_at = self._clock()
            self._distribute()
            for queue, groups in end.channel.groups.items():
                for group in sorted(groups):
                    self._subscribe(end, queue, group)
            self._wake(end)

    def end(self, end: End) -> bool:
        """The end is over; whether it was not before. The hooks tell its peer."""
        with self._lock:
            if end.is_ended:
                return False
            self._remove(end)
        self._hooks.ended(end)
        return True

    def destroy(self, name: str) -> bool:
        """There is no such channel, and its ends are over; whether there was one."""
        with self._lock:
            channel = self._channels.get(name)
            if channel is None:
                return False
            ended = self._drop_channel(channel)
        self._tell([channel], ended)
        return True

    def close(self) -> None:
        """All channels are gone for good."""
        with self._lock:
            self._is_closed = True
            channels = list(self._channels.values())
            ended = [end for channel in channels for end in self._drop_channel(channel)]
        self._tell(channels, ended)

    def sweep(self) -> bool:
        """Whoever fell silent is dropped, and quiet push consumers are to look; are there any?"""
        now = self._clock()
        with self._lock:
            ends = [end for channel in self._channels.values() for end in channel.ends]
            silent = [end for end in ends if self._is_silent(end, now)]
            for end in silent:
                self._remove(end)
            unused = [
                channel
                for channel in self._channels.values()
                if not channel.ends and now - channel.used_at >= self._settings.silent_s
            ]
            for channel in unused:
                self._drop_channel(channel)
            is_any = bool(self._channels)
        self._tell(unused, silent)
        return is_any

    def _tell(self, dropped: Iterable[Channel], ended: Iterable[End]) -> None:
        for end in ended:
            self._hooks.ended(end)
        for channel in dropped:
            self._hooks.dropped(channel.name)

    def _open(self, name: str, principal: str) -> Channel:
        if self._is_closed:
            raise system.TRANSIENT("the node is being shut down")
        channel = self._channels.get(name)
        if channel is None:
            count, settings = len(self._channels), self._settings
            _check_limit(count, settings.channels_max, f"this node has {count} channels")
            own = sum(known.creator == principal for known in self._channels.values())
            _check_limit(
                own,
                settings.channels_per_principal_max,
                f"{principal} has made {own} channels: destroy those not needed",
            )
            channel = self._channels[name] = Channel(name, principal, self._clock())
            if count == 0:
                self._hooks.opened()
        channel.used_at = self._clock()
        return channel

    def _drop_channel(self, channel: Channel) -> list[End]:
        del self._channels[channel.name]
        for queue in channel.groups:
            channels = self._watched[queue]
            del channels[channel]
            if not channels:
                del self._watched[queue]
        ended = list(channel.ends)
        for end in ended:
            self._remove(end)
        return ended

    def _remove(self, end: End) -> None:
        end.is_ended = True
        del end.channel.ends[end]
        end.channel.used_at = self._clock()
        self._ends_of[end.principal] -= 1
        if not self._ends_of[end.principal]:
            del self._ends_of[end.principal]
        end.wake.notify_all()

    def _is_silent(self, end: End, now: float) -> bool:
        silence = now - end.heard_at
        if not end.is_connected or end.kind is Kind.PULL_CONSUMER:
            return not end.waiting and silence >= self._settings.silent_s
        if end.kind is Kind.PUSH_CONSUMER and silence >= self._settings.silent_s:
            # Nothing was to be heard for long. Whether it still lives shows when it is pushed to.
            assert end.feed is not None
            end.feed.look(EVERYWHERE)
            self._wake(end)
        return end.kind is Kind.PUSH_SUPPLIER and silence >= self._settings.supplier_silent_s

    def _subscribe(self, end: End, queue: str, group: int) -> None:
        if end.feed is not None and end.is_connected and self._may_browse(end.principal, queue):
            end.feed.subscribe(queue, group)

    def _wake(self, end: End) -> None:
        if not end.is_connected or end.is_ended:
            return
        if end.feed is None:
            if end.kind is Kind.PULL_SUPPLIER and not end.is_scheduled:
                end.is_scheduled = True
                self._hooks.ready(end)
        elif end.feed.has_news():
            end.wake.notify_all()
            if end.kind is Kind.PUSH_CONSUMER and not end.is_scheduled:
                end.is_scheduled = True
                self._hooks.ready(end)

    # --- What comes in

    def arrived(self, arrival: Arrival) -> None:
        """The consumers will hear of it. Never waits, whatever the consumers do."""
        if arrival.queue not in self._watched:
            return
        if self._inbox.add(arrival):
            self._hooks.arrived()

    def look_around(self) -> bool:
        """Consumers look into queues that hold something: other nodes may have put it there.

        What other nodes commit does not arrive here. Are there any channels?
        """
        for queue in list(self._watched):
            # One that cannot be asked now is asked again.
            with contextlib.suppress(MqError):
                if self._storage.queue(queue).visible:
                    self.arrived(Arrival(queue, (), ()))
        return bool(self._channels)

    def distribute(self) -> None:
        """What has arrived is handed to every consumer that it is for."""
        with self._lock:
            self._distribute()

    def push(self, end: End, event: object) -> None:
        """A supplier's event is handed to every consumer of its channel."""
        size = bytes_of(event)
        if size > self._settings.event_bytes_max:
            raise system.IMP_LIMIT(
                f"the event has about {size} bytes, {self._settings.event_bytes_max} are allowed: "
                "put it into a queue, and push its key"
            )
        with self._lock:
            if not end.is_connected or end.is_ended:
                raise Disconnected()
            end.heard_at = self._clock()
            for other in end.channel.ends:
                if other.feed is not None and other.is_connected:
                    other.feed.add(event)
                    self._wake(other)

    def _distribute(self) -> None:
        for arrival in self._inbox.empty():
            messages = list(map(Seen, arrival.keys, arrival.groups))
            for channel in self._watched.get(arrival.queue, ()):
                for end in channel.ends:
                    if end.feed is not None:
                        _hand(end.feed, arrival.queue, messages)
                        self._wake(end)

    # --- What is heard

    def pull(self, end: End, request_id: bytes, wait_s: float) -> tuple[object, bool]:
        """The next event, and whether there was one by then.

        The same request again gets the same answer: the first one may have been lost on the way.
        """
        deadline = self._clock() + wait_s
        with self._lock:
            _check_connected(end)
            if end.answered is not None and end.answered[0] == request_id:
                return end.answered[1], True
            end.waiting += 1
        try:
            entry = self._wait_for_entry(end, deadline)
        finally:
            with self._lock:
                end.waiting -= 1
                end.heard_at = self._clock()
        if entry is None:
            return None, False
        end.answered = request_id, event_of(entry)
        return event_of(entry), True

    def _wait_for_entry(self, end: End, deadline: float) -> Entry | None:
        assert end.feed is not None
        while (entry := self.take(end)) is None:
            with self._lock:
                _check_connected(end)
                left = deadline - self._clock()
                if left <= 0:
                    return None
                if not self._inbox and not end.feed.has_news():
                    end.wake.wait(left)
        return entry

    def take(self, end: End) -> Entry | None:
        """What the consumer hears next; None if there is nothing, or much was passed over."""
        assert end.feed is not None
        for _ in range(PAGES_AT_ONCE):
            with self._lock:
                _check_connected(end)
                self._distribute()
                entry = end.feed.take()
                page = None if entry is not None else end.feed.begin_page()
            if entry is not None:
                if entry.queue == EVERYWHERE or self._may_browse(end.principal, entry.queue):
                    return entry
            elif page is not None:
                self._read(end, end.feed, page)
            else:
                return None
        return None

    def give_back(self, end: End, entry: Entry) -> None:
        """The consumer has not heard it after all."""
        assert end.feed is not None
        with self._lock:
            end.feed.give_back(entry)

    def rest(self, end: End) -> bool:
        """Whether there is nothing more to hear: then it is ready only when there is."""
        assert end.feed is not None
        with self._lock:
            if end.is_ended:
                return True
            self._distribute()
            end.is_scheduled = end.feed.has_news()
            return not end.is_scheduled

    def _read(self, end: End, feed: Feed, page: Page) -> None:
        seen, read_bytes = list[Seen](), 0
        is_lost = True
        try:
            for message in self._storage.browse(page.queue, EVERYTHING, page.after, page.limit):
                seen.append(Seen(message.key, message.group))
                read_bytes += len(message.payload)
            is_lost = False
        except QueueNotFound:
            # It was deleted, or is still to be made: there is nothing there.
            is_lost = False
        except MqError:
            # The storage says so itself, to everybody; the consumer will see it when it looks.
            is_lost = True
        finally:
            with self._lock:
                # What arrived before the page was read is on it, and is told from what came later.
                self._distribute()
                if is_lost:
                    feed.give_up_backlog()
                else:
                    feed.end_page(seen, is_small=2 * read_bytes <= self._settings.page_bytes)
                self._wake(end)


def _hand(feed: Feed, queue: str, messages: Iterable[Seen]) -> None:
    if messages:
        feed.arrived(queue, messages)
    else:
        feed.look(queue)


def _check_connected(end: End) -> None:
    if not end.is_connected or end.is_ended:
        raise Disconnected()


def _check_limit(count: int, allowed: int, told: str) -> None:
    if count >= allowed:
        raise system.IMP_LIMIT(f"{told}; {allowed} are allowed")
