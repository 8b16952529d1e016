"""The published objects of a server, and how one request becomes one answer.

Shared by every transport. Only the operations of the interface under which a servant was published
can be called; nothing is looked up on the servant by a name that came from outside. What the
interface does not declare does not get out: the caller is told UNKNOWN with the request id, and the
traceback stays in the log here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from idl import system
from idl.call import Call, check_object_name, serve_within
from idl.mapping import InvalidValue, UserException
from idl.marshal import (
    OperationCodec,
    References,
    operation_codecs,
    write_exception,
)
from idl.turns import is_prompt, step_aside

log = logging.getLogger("oncemq.orb")

# Raises NO_PERMISSION unless this caller may use this operation of this object.
Authorize = Callable[[Call, str, str], None]
# The servant for what stands behind the prefix in a name; raises `InvalidValue` if there is none.
Find = Callable[[str], object]
# What is called, how its values are read and written, and whether it is prompt.
Found = tuple[Callable[..., Any], OperationCodec, bool]

_new_tuple = tuple.__new__


class Answer(NamedTuple):
    """What goes back: plain values, and whether they are an exception."""

    plain: Any
    is_exception: bool = False


@dataclass(frozen=True)
class _Published:
    servant: object
    interface: type
    operations: dict[str, Found]


@dataclass(frozen=True)
class _Family:
    find: Find
    codecs: dict[str, OperationCodec]


def allow_everything(call: Call, object_name: str, operation: str) -> None:
    """The authorisation of a server whose callers may all do everything."""


class ObjectTable:
    """Names and their servants. Safe to use from any number of threads."""

    def __init__(self, authorize: Authorize = allow_everything) -> None:
        self._objects: dict[str, _Published] = {}
        self._families: dict[str, _Family] = {}
        self._authorize = authorize

    def publish(self, name: str, servant: object, interface: type) -> None:
        """Makes the servant's operations callable under the name."""
        operations = {
            operation: _found(servant, operation, codec)
            for operation, codec in operation_codecs(interface).items()
        }
        published = _Published(servant, interface, operations)
        # One step, so that of two that publish under one name only one succeeds.
        if self._objects.setdefault(check_object_name(name), published) is not published:
            raise InvalidValue(f"an object is published as {name!r} already")

    def publish_family(self, prefix: str, find: Find, interface: type) -> None:
        """Makes callable whatever `find` finds behind `prefix/`: objects that are not kept here."""
        family = _Family(find, operation_codecs(interface))
        if self._families.setdefault(check_object_name(prefix), family) is not family:
            raise InvalidValue(f"a family of objects is published as {prefix!r} already")

    def withdraw(self, name: str) -> None:
        """From now on there is no object with this name."""
        self._objects.pop(name, None)

    def operations(self, name: str) -> list[str]:
        """The operations of a published object, none where there is no such object."""
        published = self._objects.get(name)
        return [] if published is None else list(published.operations)

    def serve(
        self,
        call: Call,
        name: str,
        operation: str,
        arguments: tuple[Any, ...],
        references: References,
    ) -> Answer:
        """Carries out one request. Whatever goes wrong becomes an answer."""
        try:
            # Permission first: whoever may not use an object does not learn whether it exists.
            self._authorize(call, name, operation)
            published = self._objects.get(name)
            found = None if published is None else published.operations.get(operation)
            function, codec, takes_turns = found or self._find(name, operation)
            if not takes_turns:
                step_aside()
            values = codec.read_arguments(arguments, references)
        except InvalidValue as wrong:
            told = system.BAD_PARAM(str(wrong))
            return Answer(write_exception(told, references), is_exception=True)
        except system.SystemException as refused:
            return Answer(write_exception(refused, references), is_exception=True)
        try:
            plain = codec.write_result(serve_within(call, function, values), references)
            # In half the time of its own way to be made.
            return _new_tuple(Answer, (plain, False))
        except system.SystemException as raised:
            return Answer(write_exception(raised, references), is_exception=True)
        # This is the loop that serves calls: no failure of a servant may end it.
        except Exception as raised:  # noqa: BLE001
            return self._failed(call, codec, raised, references)

    def _find(self, name: str, operation: str) -> Found:
        published = self._objects.get(name)
        if published is None:
            return self._find_member(name, operation)
        found = published.operations.get(operation)
        if found is None:
            raise system.BAD_OPERATION(f"{name[:200]!r} has no operation {operation[:100]!r}")
        return found

    def _find_member(self, name: str, operation: str) -> Found:
        prefix, _, rest = name.partition("/")
        family = self._families.get(prefix)
        if family is None:
            raise system.OBJECT_NOT_EXIST(f"there is no object {name[:200]!r}")
        codec = family.codecs.get(operation)
        if codec is None:
            raise system.BAD_OPERATION(f"{name[:200]!r} has no operation {operation[:100]!r}")
        try:
            return _found(family.find(rest), operation, codec)
        except InvalidValue as wrong:
            raise system.OBJECT_NOT_EXIST(str(wrong)) from wrong

    def _failed(
        self, call: Call, codec: OperationCodec, raised: Exception, references: References
    ) -> Answer:
        if isinstance(raised, UserException) and type(raised) in codec.operation.raises:
            return Answer(write_exception(raised, references), is_exception=True)
        request = call.request_id.hex()
        log.error("%s failed, request %s", codec.operation.name, request, exc_info=raised)
        told = system.UNKNOWN(
            f"{codec.operation.name} failed; the server's log has the details, request {request}",
            system.Completion.MAYBE,
        )
        return Answer(write_exception(told, references), is_exception=True)


def _found(servant: object, operation: str, codec: OperationCodec) -> Found:
    function = getattr(servant, operation)
    return function, codec, is_prompt(function)
