"""`Mq_Fifo`: one queue in order. Thin: see `one_message`."""

from __future__ import annotations

from idl.cos import Control
from idl.mq import Mq_Fifo, QueueEmpty, check_queue_name, mqAttribList, mqHeader
from mqserver.interfaces.one_message import OneMessage
from mqserver.interfaces.parts import Parts
from mqserver.interfaces.translation import attribs_of, header_of, translating
from mqserver.permissions import Right
from mqserver.storage.contract import EVERYTHING, Message

_op = translating(Mq_Fifo)


class FifoServant:
    """See `Mq_Fifo`. Raises `InvalidValue` for what is no queue's name."""

    def __init__(self, parts: Parts, queue: str) -> None:
        self._parts = parts
        self._queue = check_queue_name(queue)
        self._one = OneMessage(parts, queue)

    @_op
    def mqPut(
        self, ctrl: Control | None, header: mqHeader, attrib: mqAttribList, data: bytes
    ) -> None:
        """See `Mq_Fifo.mqPut`."""
        self._one.put(ctrl, header, attrib, data)

    @_op
    def mqGetNext(self, ctrl: Control | None) -> tuple[mqHeader, mqAttribList, bytes]:
        """See `Mq_Fifo.mqGetNext`."""
        found = self._one.get(ctrl, self._take, "mqGetNext")
        if found is None:
            raise QueueEmpty(self._queue)
        return header_of(found), attribs_of(found), found.payload

    def _take(self, branch: bytes) -> list[Message]:
        return self._parts.queues.take(branch, self._queue, EVERYTHING, 1, 0)

    @_op
    def mqStartNotify(self, channelName: str, groupID: int) -> None:
        """See `Mq_Fifo.mqStartNotify`."""
        self._parts.start_notify(self._queue, channelName, groupID)

    @_op
    def mqSetPriorization(self, b: bool) -> None:
        """See `Mq_Fifo.mqSetPriorization`."""
        parts = self._parts
        parts.check(parts.entered(), self._queue, Right.ADMIN, "mqSetPriorization")
        parts.queues.check_usable(self._queue)
        parts.queues.set_prioritized(self._queue, b)

    @_op
    def mqGetPriorization(self) -> bool:
        """See `Mq_Fifo.mqGetPriorization`."""
        parts = self._parts
        parts.check(parts.entered(), self._queue, Right.BROWSE, "mqGetPriorization")
        parts.queues.check_usable(self._queue)
        return parts.queues.settings(self._queue).prioritized
