"""`Mq_Standard`: random access to one queue, by the keys that it made. Thin: see `one_message`."""

from __future__ import annotations

from idl.cos import Control
from idl.mq import Mq_Standard, check_queue_name, mqAttribList, mqHeader
from mqserver.errors import MessageNotFound
from mqserver.interfaces.one_message import OneMessage
from mqserver.interfaces.parts import Parts
from mqserver.interfaces.translation import (
    NOWHEN,
    attribs_of,
    header_of,
    translating,
)
from mqserver.permissions import Right
from mqserver.queues import key_number, key_text
from mqserver.storage.contract import Message

NO_HEADER = mqHeader(0, 0, NOWHEN, "")

_op = translating(Mq_Standard)


class StandardServant:
    """See `Mq_Standard`. Raises `InvalidValue` for what is no queue's name."""

    def __init__(self, parts: Parts, queue: str) -> None:
        self._parts = parts
        self._queue = check_queue_name(queue)
        self._one = OneMessage(parts, queue)

    @_op
    def mqPut(
        self, ctrl: Control | None, header: mqHeader, attrib: mqAttribList, data: bytes
    ) -> str:
        """See `Mq_Standard.mqPut`."""
        return key_text(self._one.put(ctrl, header, attrib, data))

    @_op
    def mqGet(self, ctrl: Control | None, key: str) -> tuple[mqHeader, mqAttribList, bytes]:
        """See `Mq_Standard.mqGet`."""
        found = self._one.get(ctrl, lambda branch: self._take(branch, key), "mqGet")
        assert found is not None
        return header_of(found), attribs_of(found), found.payload

    @_op
    def mqRead(self, key: str) -> tuple[bool, mqHeader, mqAttribList, bytes]:
        """See `Mq_Standard.mqRead`."""
        found = self._read(key, "mqRead")
        if found is None:
            return False, NO_HEADER, (), b""
        return True, header_of(found), attribs_of(found), found.payload

    @_op
    def mqRemove(self, key: str) -> bool:
        """See `Mq_Standard.mqRemove`."""
        try:
            # Never in a transaction of the caller's.
            self._one.get(None, lambda branch: self._take(branch, key), "mqRemove", is_alone=True)
        except MessageNotFound:
            return False
        return True

    @_op
    def mqGetAttribList(self, key: str) -> mqAttribList:
        """See `Mq_Standard.mqGetAttribList`."""
        found = self._read(key, "mqGetAttribList")
        if found is None:
            raise MessageNotFound(self._queue, key)
        return attribs_of(found)

    @_op
    def mqStartNotify(self, channelName: str, groupID: int) -> None:
        """See `Mq_Standard.mqStartNotify`."""
        self._parts.start_notify(self._queue, channelName, groupID)

    def _take(self, branch: bytes, key: str) -> list[Message]:
        keys, parts = [key_number(self._queue, key)], self._parts
        return parts.queues.take_keys(branch, self._queue, keys, parts.lock_wait_s)

    def _read(self, key: str, operation: str) -> Message | None:
        parts = self._parts
        parts.check(parts.entered(), self._queue, Right.BROWSE, operation)
        parts.queues.check_usable(self._queue)
        try:
            return parts.queues.read(self._queue, key_number(self._queue, key))
        except MessageNotFound:
            # What is no key is the key of no message.
            return None
