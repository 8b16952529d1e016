"""`Mq_Admin`, and in it `Mq_Service`: the switches of a node, its queues, branches and consumers.

All of it works while the queues are switched off. What an operator changes is audited.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from idl.call import Call
from idl.cos import Status, otid_t
from idl.mq import (
    USEC_PER_SEC,
    ConsumerNotFound,
    Mq_Admin,
    QueueInUse,
    mqBranchInfo,
    mqBranchInfoList,
    mqConsumerInfo,
    mqConsumerInfoList,
    mqQueueInfo,
    mqQueueInfoList,
    mqQueueSettings,
)
from idl.otids import show, split_otid
from mqserver import errors
from mqserver.interfaces.parts import Parts
from mqserver.interfaces.reservations import Reservations
from mqserver.interfaces.translation import translating
from mqserver.permissions import Right
from mqserver.storage.contract import QueueInfo, QueueSettings
from mqserver.transactions.administration import BranchAdministration

audit = logging.getLogger("oncemq.audit")

ADMIN = "admin"
PURGE = b"purge"
SHOWN_MAX = 100

_op = translating(Mq_Admin)


class AdminServant:
    """See `Mq_Admin`."""

    def __init__(
        self, parts: Parts, reservations: Reservations, shut_down: Callable[[], None]
    ) -> None:
        self._parts = parts
        self._queues = parts.queues
        self._storage = parts.storage
        self._reservations = reservations
        self._shut_down = shut_down
        work = parts.work
        self._branches = BranchAdministration(parts.storage, work.age_of, work.owner_of)

    # --- Mq_Service

    @_op
    def mqShutdown(self) -> None:
        """See `Mq_Service.mqShutdown`. The node is closed when this has been answered."""
        call = self._operator("mqShutdown")
        audit.warning("%s shuts the node down", call.principal.name)
        self._shut_down()

    @_op
    def setEnabled(self, b: bool) -> None:
        """See `Mq_Service.setEnabled`. It lasts until the node is restarted."""
        call = self._operator("setEnabled")
        audit.warning("%s switches the node %s", call.principal.name, "on" if b else "off")
        self._queues.set_enabled(b)

    @_op
    def isEnabled(self) -> bool:
        """See `Mq_Service.isEnabled`."""
        self._parts.entered()
        return self._queues.is_enabled

    @_op
    def getStatus(self) -> str:
        """See `Mq_Service.getStatus`."""
        self._operator("getStatus")
        queues = [self._queue_info(info) for info in self._storage.queues()]
        branches = self._branches.listBranches()
        parts = self._parts
        return "\n".join(
            [
                f"node {parts.name}: {'enabled' if self._queues.is_enabled else 'disabled'}",
                f"coordinator: {parts.coordinator or 'none'}",
                *_queue_lines(queues),
                *_branch_lines(branches),
            ]
        )

    # --- Queues

    @_op
    def createQueue(self, queue: str, settings: mqQueueSettings) -> None:
        """See `Mq_Admin.createQueue`."""
        call = self._administrator(queue, "createQueue")
        self._queues.create(queue, _settings_of(settings))
        audit.warning("%s creates queue %s", call.principal.name, queue)

    @_op
    def changeQueue(self, queue: str, settings: mqQueueSettings) -> None:
        """See `Mq_Admin.changeQueue`."""
        call = self._administrator(queue, "changeQueue")
        self._queues.change(queue, _settings_of(settings))
        audit.warning("%s changes queue %s: %s", call.principal.name, queue, settings)

    @_op
    def deleteQueue(self, queue: str) -> None:
        """See `Mq_Admin.deleteQueue`."""
        call = self._administrator(queue, "deleteQueue")
        try:
            self._queues.delete(queue)
        except errors.QueueInUse as used:
            info = self._storage.queue(queue)
            raise QueueInUse(queue, info.visible + info.locked) from used
        audit.warning("%s deletes queue %s", call.principal.name, queue)

    @_op
    def purgeQueue(self, queue: str) -> int:
        """See `Mq_Admin.purgeQueue`."""
        call = self._administrator(queue, "purgeQueue")
        audit.warning("%s purges queue %s", call.principal.name, queue)
        own = PURGE + call.request_id
        purged = self._queues.purge(queue, lambda step: own + step.to_bytes(8))
        audit.warning("%d messages of queue %s were purged", purged, queue)
        return purged

    @_op
    def getQueue(self, queue: str) -> mqQueueInfo:
        """See `Mq_Admin.getQueue`."""
        call = self._parts.entered()
        if not self._parts.permissions.sees(call.principal.name, queue):
            self._parts.check(call, queue, Right.BROWSE, "getQueue")
        return self._queue_info(self._storage.queue(queue))

    @_op
    def listQueues(self) -> mqQueueInfoList:
        """See `Mq_Admin.listQueues`; those are left out on which the caller has no right."""
        caller = self._parts.entered().principal.name
        sees = self._parts.permissions.sees
        return tuple(
            self._queue_info(info) for info in self._storage.queues() if sees(caller, info.name)
        )

    def _queue_info(self, info: QueueInfo) -> mqQueueInfo:
        age_us = self._parts.now_us() - info.oldest_us if info.oldest_us else 0
        settings = info.settings
        return mqQueueInfo(
            info.name,
            mqQueueSettings(
                settings.enabled, settings.prioritized, settings.messages_max, settings.bytes_max
            ),
            info.visible,
            info.locked,
            info.payload_bytes,
            max(0, age_us // USEC_PER_SEC),
        )

    # --- Branches

    @_op
    def listBranches(self) -> mqBranchInfoList:
        """See `Mq_Admin.listBranches`."""
        self._operator("listBranches")
        return self._branches.listBranches()

    @_op
    def decideBranch(self, otid: otid_t, commit: bool) -> None:
        """See `Mq_Admin.decideBranch`."""
        call = self._operator("decideBranch")
        audit.warning("%s decides a branch by hand", call.principal.name)
        self._branches.decideBranch(otid, commit)

    @_op
    def forgetBranch(self, otid: otid_t) -> None:
        """See `Mq_Admin.forgetBranch`."""
        call = self._operator("forgetBranch")
        audit.warning("%s forgets a branch", call.principal.name)
        self._branches.forgetBranch(otid)

    # --- Consumers

    @_op
    def listConsumers(self) -> mqConsumerInfoList:
        """See `Mq_Admin.listConsumers`."""
        self._operator("listConsumers")
        return tuple(
            mqConsumerInfo(
                known.consumer,
                known.queue,
                known.messages,
                int(self._reservations.age_of(known.consumer)) if known.messages else 0,
            )
            for known in self._storage.consumers()
        )

    @_op
    def dropConsumer(self, consumer: str) -> None:
        """See `Mq_Admin.dropConsumer`."""
        call = self._operator("dropConsumer")
        if all(known.consumer != consumer for known in self._storage.consumers()):
            raise ConsumerNotFound(consumer)
        self._storage.drop_consumer(consumer)
        self._reservations.dropped(consumer)
        audit.warning("%s drops consumer %r", call.principal.name, consumer)

    # --- Who may

    def _operator(self, operation: str) -> Call:
        call = self._parts.entered()
        self._parts.permissions.authorize(call, ADMIN, operation)
        return call

    def _administrator(self, queue: str, operation: str) -> Call:
        call = self._parts.entered()
        self._parts.check(call, queue, Right.ADMIN, operation)
        return call


def _settings_of(settings: mqQueueSettings) -> QueueSettings:
    return QueueSettings(
        settings.enabled, settings.prioritized, settings.messagesMax, settings.bytesMax
    )


# --- For people ----------------------------------------------------------------------------------


def _queue_lines(queues: list[mqQueueInfo]) -> list[str]:
    lines = [f"queues: {len(queues)}"]
    for info in queues[:SHOWN_MAX]:
        words = [f"{info.visible} messages", f"{info.locked} held", f"{info.bytes} bytes"]
        if info.visible:
            words.append(f"oldest {info.oldest} s")
        if not info.settings.enabled:
            words.append("disabled")
        if info.settings.prioritized:
            words.append("by priority")
        if info.settings.messagesMax:
            words.append(f"at most {info.settings.messagesMax} messages")
        if info.settings.bytesMax:
            words.append(f"at most {info.settings.bytesMax} bytes")
        lines.append(f"  {info.queue}: {', '.join(words)}")
    return lines + _rest(len(queues))


def _branch_lines(branches: mqBranchInfoList) -> list[str]:
    active = sum(info.state is Status.ACTIVE for info in branches)
    prepared = sum(info.state is Status.PREPARED for info in branches)
    lines = [f"transactions: {active} active, {prepared} prepared"]
    lines += [f"  {_branch_line(info)}" for info in branches[:SHOWN_MAX]]
    return lines + _rest(len(branches))


def _branch_line(info: mqBranchInfo) -> str:
    gtrid, name = split_otid(info.otid)
    words = [
        f"{info.state.name.lower().replace('_', ' ')} for {info.age} s",
        f"owner {info.owner or 'unknown'}",
        f"{info.stored} stored",
        f"{info.deleted} taken",
    ]
    if info.coordinator:
        words.append(f"asks {info.coordinator}")
    return f"{show(gtrid)}/{name}: {', '.join(words)}"


def _rest(count: int) -> list[str]:
    return [f"  … and {count - SHOWN_MAX} more"] if count > SHOWN_MAX else []
