"""The event channels as CosEvent shows them: one thin servant per interface.

`Channels` is what a node uses: it publishes the channels, hands on what arrives, and ends it all.
Objects that are given out have names that nobody can guess and belong to the principal that asked
for them; to anybody else they do not exist, in the same words as for an object that never was. Who
may name a channel at all is for the orb's authorisation to say.

    for_consumers ─► obtain_push_supplier ─► connect_push_consumer(consumer) ─► consumer.push
                  └► obtain_pull_supplier ─► connect_pull_consumer(None) ─► pull, try_pull
    for_suppliers ─► obtain_push_consumer ─► connect_push_supplier(None) ─► push
                  └► obtain_pull_consumer ─► connect_pull_supplier(supplier) ─► supplier.try_pull

A disconnect is final: the object is gone, and whoever was at the other side of it is told once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from idl import system
from idl.call import Orb, Reference, current_call
from idl.cos import (
    ConsumerAdmin,
    EventChannel,
    ProxyPullConsumer,
    ProxyPullSupplier,
    ProxyPushConsumer,
    ProxyPushSupplier,
    PullConsumer,
    PullSupplier,
    PushConsumer,
    PushSupplier,
    SupplierAdmin,
)
from idl.cos import TypeError as WrongPeer
from idl.mapping import InvalidValue
from mqserver.arrivals import Arrival
from mqserver.events.delivery import Delivery
from mqserver.events.ends import End, Kind
from mqserver.events.settings import EventSettings
from mqserver.events.switchboard import Hooks, Switchboard
from mqserver.events.workers import ThreadWorkers, Workers
from mqserver.storage.contract import Storage

T = TypeVar("T")

FAMILY = "channel"
NAME_LENGTH_MAX = 128
NODE_ITSELF = ""

_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


class Channels:
    """All event channels of a node; each is made when it is first named. May be used by any thread.

    `may_browse(principal, queue)` says who hears of a queue, `is_operator(principal)` who may
    destroy what others have made; `is_shared`: other nodes write to the same storage. It is closed
    before the orb and the storage are.
    """

    def __init__(
        self,
        orb: Orb,
        storage: Storage,
        settings: EventSettings,
        clock: Callable[[], float],
        *,
        may_browse: Callable[[str, str], bool] = lambda principal, queue: True,
        is_operator: Callable[[str], bool] = lambda principal: False,
        is_shared: bool = False,
        make_workers: Callable[[str, int], Workers] | None = None,
        make_condition: Callable[[threading.Lock], threading.Condition] = threading.Condition,
    ) -> None:
        self.settings = settings
        self._orb = orb
        self._is_operator = is_operator
        hooks = Hooks(
            arrived=lambda: self._delivery.arrived(),
            ready=lambda end: self._delivery.ready(end),
            opened=lambda: self._delivery.opened(),
            ended=self._ended,
            dropped=self._dropped,
        )
        self.board = Switchboard(storage, settings, clock, hooks, may_browse, make_condition)
        self._delivery = Delivery(
            self.board,
            settings,
            clock,
            make_workers or (lambda name, threads: ThreadWorkers(name, threads, clock)),
            is_shared,
        )
        self._lock = threading.Lock()
        self._objects: dict[End, object] = {}
        # The names of what was published for the ends of channels: none may be another's peer.
        self._own: set[str] = set()
        self._admins: dict[tuple[str, str, type], object] = {}

    def publish(self) -> None:
        """Every channel can be called, whether there is one by this name already or not."""
        self._orb.publish_family(FAMILY, self._channel, EventChannel)

    def start_notify(self, channel: str, queue: str, group: int) -> None:
        """The channel hears of the queue's messages of the group: of those there, and of all new.

        Whoever calls this has checked that the caller may browse the queue.
        """
        try:
            check_channel_name(channel)
        except InvalidValue as wrong:
            raise system.BAD_PARAM(str(wrong)) from wrong
        self.board.start_notify(channel, queue, group, _caller())

    def arrived(self, arrival: Arrival) -> None:
        """Consumers will hear of it. Returns at once, whatever they do."""
        self.board.arrived(arrival)

    def close(self) -> None:
        """All consumers and suppliers are told, as far as there is time, and nothing goes on."""
        self.board.close()
        self._delivery.close()

    def _channel(self, name: str) -> ChannelServant:
        return ChannelServant(self, check_channel_name(name))

    # --- For the servants

    def admin(self, channel: str, interface: type[T], make: Callable[[Owner], T]) -> T:
        """The one object with this interface that the caller has at the channel."""
        principal = _caller()
        self.board.open(channel, principal)
        with self._lock:
            known = self._admins.get((channel, principal, interface))
            if known is None:
                known = self._publish(principal, interface, make)
                self._admins[channel, principal, interface] = known
            return known  # type: ignore[return-value]

    def obtain(
        self, kind: Kind, channel: str, interface: type[T], make: Callable[[Owner, End], T]
    ) -> T:
        """A new end of the channel, and the object that stands for it."""
        principal = _caller()
        end = self.board.obtain(kind, channel, principal)
        with self._lock:
            published = self._publish(principal, interface, lambda owner: make(owner, end))
            self._objects[end] = published
            self._own.add(self._name_of(published))
        if end.is_ended:
            self._withdraw(end)
        return published

    def destroy(self, channel: str) -> None:
        """The channel is gone, if the caller made it or is an operator."""
        principal = _caller()
        creator = self.board.creator_of(channel)
        if creator != principal and not self._is_operator(principal):
            raise system.NO_PERMISSION(
                f"{principal} may not destroy a channel that it did not make: ask an operator"
            )
        if creator is None or not self.board.destroy(channel):
            raise system.OBJECT_NOT_EXIST(f"there is no channel {channel!r}")

    def check_peer(self, peer: object | None) -> object:
        """The peer itself, if the channel can call it; channels do not call each other in rings."""
        if peer is None:
            raise system.BAD_PARAM("the channel has nobody to call: pass an object, not nil")
        if self._name_of(peer) in self._own:
            raise WrongPeer()
        return peer

    def _publish(self, principal: str, interface: type[T], make: Callable[[Owner], T]) -> T:
        owner = Owner(principal)
        published = self._orb.publish(make(owner), interface)
        owner.name = self._name_of(published)
        return published

    def _name_of(self, published: object) -> str:
        return Reference.parse(self._orb.reference_of(published)).name

    def _dropped(self, channel: str) -> None:
        with self._lock:
            gone = [key for key in self._admins if key[0] == channel]
            admins = [self._admins.pop(key) for key in gone]
        for admin in admins:
            self._orb.withdraw(admin)

    def _ended(self, end: End) -> None:
        self._withdraw(end)
        self._delivery.ended(end)

    def _withdraw(self, end: End) -> None:
        with self._lock:
            published = self._objects.pop(end, None)
            if published is not None:
                self._own.discard(self._name_of(published))
        if published is not None:
            self._orb.withdraw(published)


class Owner:
    """Whose object it is. To everybody else there is none."""

    def __init__(self, principal: str) -> None:
        self._principal = principal
        self.name = ""

    def check(self) -> None:
        """Raises, in the words of the orb for what is not there, unless the owner calls."""
        if _caller() != self._principal:
            raise system.OBJECT_NOT_EXIST(f"there is no object {self.name!r}")


def check_channel_name(name: str) -> str:
    """The name itself, when it is one that a channel can have."""
    if not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise InvalidValue(
            f"channel name {name[:60]!r}: use 1 to {NAME_LENGTH_MAX} letters, digits, "
            "dots, hyphens and underscores"
        )
    return name


def _caller() -> str:
    try:
        return current_call().principal.name
    except LookupError:
        return NODE_ITSELF


# --- The channel and its two sides ---------------------------------------------------------------


class ChannelServant:
    """See `EventChannel`."""

    def __init__(self, channels: Channels, name: str) -> None:
        self._channels = channels
        self._name = name

    def for_consumers(self) -> ConsumerAdmin:
        """See `EventChannel.for_consumers`."""
        make = partial(ConsumerAdminServant, self._channels, self._name)
        return self._channels.admin(self._name, ConsumerAdmin, make)

    def for_suppliers(self) -> SupplierAdmin:
        """See `EventChannel.for_suppliers`."""
        make = partial(SupplierAdminServant, self._channels, self._name)
        return self._channels.admin(self._name, SupplierAdmin, make)

    def destroy(self) -> None:
        """See `EventChannel.destroy`."""
        self._channels.destroy(self._name)


class ConsumerAdminServant:
    """See `ConsumerAdmin`."""

    def __init__(self, channels: Channels, name: str, owner: Owner) -> None:
        self._channels = channels
        self._name = name
        self._owner = owner

    def obtain_push_supplier(self) -> ProxyPushSupplier:
        """See `ConsumerAdmin.obtain_push_supplier`."""
        self._owner.check()
        make = partial(ProxyPushSupplierServant, self._channels)
        return self._channels.obtain(Kind.PUSH_CONSUMER, self._name, ProxyPushSupplier, make)

    def obtain_pull_supplier(self) -> ProxyPullSupplier:
        """See `ConsumerAdmin.obtain_pull_supplier`."""
        self._owner.check()
        make = partial(ProxyPullSupplierServant, self._channels)
        return self._channels.obtain(Kind.PULL_CONSUMER, self._name, ProxyPullSupplier, make)


class SupplierAdminServant:
    """See `SupplierAdmin`."""

    def __init__(self, channels: Channels, name: str, owner: Owner) -> None:
        self._channels = channels
        self._name = name
        self._owner = owner

    def obtain_push_consumer(self) -> ProxyPushConsumer:
        """See `SupplierAdmin.obtain_push_consumer`."""
        self._owner.check()
        make = partial(ProxyPushConsumerServant, self._channels)
        return self._channels.obtain(Kind.PUSH_SUPPLIER, self._name, ProxyPushConsumer, make)

    def obtain_pull_consumer(self) -> ProxyPullConsumer:
        """See `SupplierAdmin.obtain_pull_consumer`."""
        self._owner.check()
        make = partial(ProxyPullConsumerServant, self._channels)
        return self._channels.obtain(Kind.PULL_SUPPLIER, self._name, ProxyPullConsumer, make)


# --- The channel as consumers see it -------------------------------------------------------------


class ProxyPushSupplierServant:
    """See `ProxyPushSupplier`."""

    def __init__(self, channels: Channels, owner: Owner, end: End) -> None:
        self._channels = channels
        self._owner = owner
        self._end = end

    def connect_push_consumer(self, push_consumer: PushConsumer | None) -> None:
        """See `ProxyPushSupplier.connect_push_consumer`."""
        self._owner.check()
        self._channels.board.connect(self._end, self._channels.check_peer(push_consumer))

    def disconnect_push_supplier(self) -> None:
        """See `PushSupplier.disconnect_push_supplier`."""
        self._owner.check()
        self._channels.board.end(self._end)


class ProxyPullSupplierServant:
    """See `ProxyPullSupplier`."""

    def __init__(self, channels: Channels, owner: Owner, end: End) -> None:
        self._channels = channels
        self._owner = owner
        self._end = end

    def connect_pull_consumer(self, pull_consumer: PullConsumer | None) -> None:
        """See `ProxyPullSupplier.connect_pull_consumer`."""
        self._owner.check()
        self._channels.board.connect(self._end, pull_consumer)

    def pull(self) -> object:
        """See `PullSupplier.pull`; TIMEOUT when nothing came for long, and nothing was lost."""
        wait_s = self._channels.settings.pull_wait_s
        event, has_event = self._pull(wait_s)
        if not has_event:
            raise system.TIMEOUT(f"no event came within {wait_s:g} s: pull again")
        return event

    def try_pull(self) -> tuple[object, bool]:
        """See `PullSupplier.try_pull`."""
        return self._pull(0.0)

    def _pull(self, wait_s: float) -> tuple[object, bool]:
        self._owner.check()
        return self._channels.board.pull(self._end, current_call().request_id, wait_s)

    def disconnect_pull_supplier(self) -> None:
        """See `PullSupplier.disconnect_pull_supplier`."""
        self._owner.check()
        self._channels.board.end(self._end)


# --- The channel as suppliers see it -------------------------------------------------------------


class ProxyPushConsumerServant:
    """See `ProxyPushConsumer`."""

    def __init__(self, channels: Channels, owner: Owner, end: End) -> None:
        self._channels = channels
        self._owner = owner
        self._end = end

    def connect_push_supplier(self, push_supplier: PushSupplier | None) -> None:
        """See `ProxyPushConsumer.connect_push_supplier`."""
        self._owner.check()
        self._channels.board.connect(self._end, push_supplier)

    def push(self, data: object) -> None:
        """See `PushConsumer.push`."""
        self._owner.check()
        self._channels.board.push(self._end, data)

    def disconnect_push_consumer(self) -> None:
        """See `PushConsumer.disconnect_push_consumer`."""
        self._owner.check()
        self._channels.board.end(self._end)


class ProxyPullConsumerServant:
    """See `ProxyPullConsumer`."""

    def __init__(self, channels: Channels, owner: Owner, end: End) -> None:
        self._channels = channels
        self._owner = owner
        self._end = end

    def connect_pull_supplier(self, pull_supplier: PullSupplier | None) -> None:
        """See `ProxyPullConsumer.connect_pull_supplier`."""
        self._owner.check()
        self._channels.board.connect(self._end, self._channels.check_peer(pull_supplier))

    def disconnect_pull_consumer(self) -> None:
        """See `PullConsumer.disconnect_pull_consumer`."""
        self._owner.check()
        self._channels.board.end(self._end)
