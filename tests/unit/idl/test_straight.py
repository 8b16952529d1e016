"""The straight way says what the general one says, of whatever comes, for every type there is."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from idl import coordination, cos, databases, mq
from idl.mapping import (
    Enumeration,
    IdlType,
    Integer,
    InvalidValue,
    ObjectReference,
    Plain,
    SequenceOf,
    Structure,
    Text,
    fields_of,
    is_interface,
    operations_of,
    own_check_of,
)
from idl.marshal import OperationCodec, _operation_codec, codec_of, operation_codecs

INTERFACES = [
    kind
    for module in (cos, coordination, databases, mq)
    for kind in vars(module).values()
    if isinstance(kind, type) and is_interface(kind) and kind.__module__ == module.__name__
]
CODECS = [
    pytest.param(codec, id=f"{interface.__name__}.{name}")
    for interface in INTERFACES
    for name, codec in operation_codecs(interface).items()
]
JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**70,
    1.5,
    "",
    "a\0b",
    "ä",
    "\ud800",
    "x" * 400,
    b"",
    b"x" * 400,
    (),
    [],
)
MORE_JUNK = (*JUNK, (None,), (1, 2), ("a", "a\0"), (b"a", 1), {"a": 1}, object())


class Names:
    """References that are their own objects."""

    def export(self, target: object, interface: type) -> str:
        return str(target)

    def resolve(self, name: str, interface: type) -> object:
        return name


def plain_of(kind: IdlType) -> list[Any]:
    """Plain values that can be read, among them some that are rare."""
    match kind:
        case Plain(python=python):
            return [python(), python(1)]
        case Integer(low=low, high=high):
            return [0, low, high]
        case Text():
            return ["", "name", "größe"]
        case Enumeration(python=python):
            return list(python.__members__)
        case ObjectReference():
            return [None, "PYRO:object@host:1"]
        case SequenceOf(element=element):
            each = plain_of(element)
            return [(), (each[0],), (each[-1], each[0])]
        case Structure(python=python):
            fields = [plain_of(field) for _, field in fields_of(python)]
            return [tuple(values[0] for values in fields), tuple(values[-1] for values in fields)]
    return [None, (1, "a", {"b": b"c"})]


def spoiled(plain: Any) -> Iterator[Any]:
    """The same with one part of it, however deep, made something else."""
    yield from MORE_JUNK
    if type(plain) is tuple:
        yield plain[1:]
        yield (*plain, 0)
        yield list(plain)
        for position, part in enumerate(plain):
            for other in spoiled(part):
                yield (*plain[:position], other, *plain[position + 1 :])


def said(function: Callable[..., Any], given: Any) -> Any:
    try:
        return function(given, Names())
    except InvalidValue as wrong:
        return str(wrong)


def general(function: Callable[..., Any]) -> Callable[..., Any]:
    found: Callable[..., Any] = function.__globals__["otherwise"]
    assert found is not function
    return found


def examples(kinds: list[IdlType]) -> list[tuple[Any, ...]]:
    parts = [plain_of(kind) for kind in kinds]
    return [tuple(values[0] for values in parts), tuple(values[-1] for values in parts)]


def argument_types(codec: OperationCodec) -> list[IdlType]:
    return [kind for _, kind in codec.operation.parameters]


@pytest.mark.parametrize("codec", CODECS)
def test_arguments_are_read_as_in_the_general_way(codec: OperationCodec) -> None:
    for example in examples(argument_types(codec)):
        for plain in (example, *spoiled(example)):
            assert said(codec.read_arguments, plain) == said(general(codec.read_arguments), plain)


@pytest.mark.parametrize("codec", CODECS)
def test_arguments_are_written_as_in_the_general_way(codec: OperationCodec) -> None:
    for example in examples(argument_types(codec)):
        values = said(codec.read_arguments, example)
        if not isinstance(values, list):
            continue
        assert said(codec.write_arguments, tuple(values)) == example
        for position in range(len(values)):
            for other in MORE_JUNK:
                given = (*values[:position], other, *values[position + 1 :])
                straight = said(codec.write_arguments, given)
                assert straight == said(general(codec.write_arguments), given)


def result_types(codec: OperationCodec) -> list[IdlType]:
    op = codec.operation
    return [*([] if op.result is None else [op.result]), *(kind for _, kind in op.out)]


@pytest.mark.parametrize("codec", CODECS)
def test_results_are_read_as_in_the_general_way(codec: OperationCodec) -> None:
    for example in examples(result_types(codec)):
        for plain in (example, *spoiled(example)):
            assert said(codec.read_result, plain) == said(general(codec.read_result), plain)


@pytest.mark.parametrize("codec", CODECS)
def test_results_are_written_as_in_the_general_way(codec: OperationCodec) -> None:
    for example in examples(result_types(codec)):
        returned = said(codec.read_result, example)
        if isinstance(returned, str) and result_types(codec) != [Text()]:
            continue
        assert said(codec.write_result, returned) == example
        others = list(MORE_JUNK)
        if len(example) > 1:
            others += [
                (*returned[:position], other, *returned[position + 1 :])
                for position in range(len(returned))
                for other in MORE_JUNK
            ]
        for other in others:
            assert said(codec.write_result, other) == said(general(codec.write_result), other)


def test_a_function_that_is_held_before_it_is_made_is_the_same() -> None:
    codec = _operation_codec(operations_of(mq.Mq_Node)["countMessages"])
    held = codec.read_arguments
    assert held(("orders",), Names()) == ["orders"]
    assert codec.read_arguments is not held
    assert held(("orders",), Names()) == codec.read_arguments(("orders",), Names())


STRUCTURES = [
    kind
    for module in (cos, coordination, databases, mq)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and hasattr(kind, "__idl_own_check__")
    and kind.__module__ == module.__name__
]


@pytest.mark.parametrize("python", STRUCTURES)
def test_structures_are_read_as_in_the_general_way(python: type) -> None:
    read = codec_of(Structure(python)).read
    assert read is not None
    for example in plain_of(Structure(python)):
        for plain in (example, *spoiled(example)):
            assert said(read, plain) == said(general(read), plain)


def test_what_a_structure_checks_itself_is_checked() -> None:
    read = codec_of(Structure(cos.otid_t)).read
    assert read is not None
    assert own_check_of(cos.otid_t) is not None
    with pytest.raises(InvalidValue, match="bqual_length"):
        read((1, 9, b"short"), Names())


def test_a_structure_that_was_read_is_like_one_that_was_made() -> None:
    read = codec_of(Structure(mq.mqBranch)).read
    assert read is not None
    made = mq.mqBranch(cos.otid_t(1, 0, b"name"), "n1", None)
    found = read(((1, 0, b"name"), "n1", None), Names())
    assert found.__class__ is mq.mqBranch
    assert (found, hash(found), repr(found)) == (made, hash(made), repr(made))
    assert pickle.loads(pickle.dumps(found)) == made
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(found, "name", "n2")  # noqa: B010


def test_values_of_a_class_that_is_derived_from_the_right_one_are_refused() -> None:
    class Number(int):
        pass

    codec = operation_codecs(mq.Mq_Node)["getReservationSize"]
    with pytest.raises(InvalidValue, match="is not an int"):
        codec.write_arguments(("consumer", Number(1)), Names())
