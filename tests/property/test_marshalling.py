"""Whatever can be passed arrives as it was: every struct, exception and operation, generated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idl import mq, system, wire
from idl.mapping import InvalidValue, UserException, operations_of
from idl.marshal import (
    OperationCodec,
    operation_codecs,
    printable,
    read_exception,
    write_exception,
)
from tests.property.idl_values import (
    EXCEPTIONS,
    INTERFACES,
    NO_CALLS,
    structures,
    values,
)

OPERATIONS = [
    pytest.param(codec, id=f"{interface.__name__}.{name}")
    for interface in INTERFACES
    for name, codec in operation_codecs(interface).items()
]


def through_the_wire(plain: Any) -> Any:
    return wire.unpack(wire.pack(plain))


@pytest.mark.parametrize("codec", OPERATIONS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_arguments_arrive_as_they_were_given(codec: OperationCodec, data: st.DataObject) -> None:
    given_values = tuple(data.draw(values(t)) for _, t in codec.operation.parameters)
    plain = through_the_wire(codec.write_arguments(given_values, NO_CALLS))
    assert tuple(codec.read_arguments(plain, NO_CALLS)) == given_values


@pytest.mark.parametrize("codec", OPERATIONS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_results_arrive_as_they_were_returned(codec: OperationCodec, data: st.DataObject) -> None:
    operation = codec.operation
    types = [*([operation.result] if operation.result else []), *(t for _, t in operation.out)]
    drawn = tuple(data.draw(values(t)) for t in types)
    returned = drawn if len(drawn) > 1 else (drawn[0] if drawn else None)
    plain = through_the_wire(codec.write_result(returned, NO_CALLS))
    assert codec.read_result(plain, NO_CALLS) == returned


@pytest.mark.parametrize("kind", EXCEPTIONS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_exceptions_arrive_as_themselves(kind: type[UserException], data: st.DataObject) -> None:
    raised = data.draw(structures(kind))
    declared = {name: k for codec in _codecs_raising(kind) for name, k in codec.exceptions.items()}
    plain = through_the_wire(write_exception(raised, NO_CALLS))
    arrived = read_exception(plain, declared, NO_CALLS)
    assert type(arrived) is kind
    assert arrived == raised


def _codecs_raising(kind: type[UserException]) -> list[OperationCodec]:
    from idl.cos import Current

    # What only the local Current raises never travels, and has no codec of a remote operation.
    every = [*INTERFACES, Current]
    found = [c for i in every for c in operation_codecs(i).values() if kind in c.operation.raises]
    assert found, f"nothing raises {kind.__name__}"
    return found


@pytest.mark.parametrize("kind", system.SystemException.__subclasses__(), ids=lambda k: k.__name__)
@pytest.mark.parametrize("completed", system.Completion)
@given(reason=st.text(st.characters(codec="utf-8")))
@settings(max_examples=5, deadline=None)
def test_standard_exceptions_arrive_as_themselves(
    kind: type[system.SystemException], completed: system.Completion, reason: str
) -> None:
    plain = through_the_wire(write_exception(kind(reason, completed), NO_CALLS))
    arrived = read_exception(plain, {}, NO_CALLS)
    assert type(arrived) is kind
    assert arrived.args == (printable(reason), completed)
    assert arrived.reason.isprintable()


_ARBITRARY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.binary(max_size=20),
    lambda part: (
        st.lists(part, max_size=6).map(tuple)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), part, max_size=3)
    ),
    max_leaves=20,
)


@given(plain=_ARBITRARY, data=st.data())
@settings(max_examples=400, deadline=None)
def test_a_stranger_s_arguments_are_fine_or_refused_and_never_anything_else(
    plain: Any, data: st.DataObject
) -> None:
    interface = data.draw(st.sampled_from(INTERFACES))
    codecs = operation_codecs(interface)
    if not codecs:
        return
    codec = codecs[data.draw(st.sampled_from(sorted(codecs)))]
    try:
        arrived = codec.read_arguments(plain, NO_CALLS)
    except InvalidValue:
        return
    for value, (_, idl_type) in zip(arrived, codec.operation.parameters, strict=True):
        idl_type.check(value, "argument")


@given(body=st.binary(max_size=200))
@settings(max_examples=400, deadline=None)
def test_arbitrary_bytes_are_unpacked_or_unreadable_and_never_anything_else(body: bytes) -> None:
    try:
        name, operation, arguments = wire.unpack_call(body)
    except wire.Unreadable:
        return
    assert isinstance(name, str)
    assert isinstance(operation, str)
    assert isinstance(arguments, tuple)


def test_an_exception_that_the_operation_does_not_declare_is_unknown() -> None:
    plain = write_exception(mq.QueueFull("q", 1), NO_CALLS)
    arrived = read_exception(plain, {}, NO_CALLS)
    assert isinstance(arrived, system.UNKNOWN)
    assert arrived.completed is system.Completion.MAYBE
    assert "Mq" not in str(arrived) or "QueueFull" in str(arrived)


def test_no_operation_of_any_interface_lacks_a_codec() -> None:
    assert sum(len(operations_of(interface)) for interface in INTERFACES) == len(OPERATIONS)
    assert len(OPERATIONS) > 100
