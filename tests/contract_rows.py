"""The contracts as plain rows, once from the IDL texts and once from the Python image.

A row says all that the two must agree on: names, order, types with typedefs expanded, directions,
exceptions, enumerators. Two sets of rows are equal, or the difference is the defect.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Mapping
from types import ModuleType

from idl import coordination, cos, custody, decider, mq, parser
from idl.mapping import (
    IdlType,
    UserException,
    fields_of,
    idl_name,
    is_interface,
    is_local,
    operations_of,
)

Rows = dict[str, tuple[object, ...]]
Declarations = Mapping[str, object]


# --- From the IDL --------------------------------------------------------------------------------


def rows_of_idl(contract: parser.Contract, declarations: Declarations) -> Rows:
    """Every enum, struct, exception, interface and operation; typedefs are in what they name."""
    rows: Rows = {}
    for name, declared in declarations.items():
        match declared:
            case parser.Enum(enumerators=enumerators):
                rows[name] = ("enum", tuple(_image_name(name, str(e)) for e in enumerators))
            case parser.Struct(members=members):
                rows[name] = ("struct", _members(contract, members))
            case parser.ExceptionDeclaration(members=members):
                rows[name] = ("exception", _members(contract, members))
            case parser.Interface():
                rows.update(_interface_rows(contract, name, declared))
    return rows


def _interface_rows(contract: parser.Contract, name: str, declared: parser.Interface) -> Rows:
    bases = tuple(str(base.name) for base in declared.bases)
    rows: Rows = {
        name: ("interface", declared.local, bases, tuple(map(_name, declared.operations)))
    }
    for operation in declared.operations:
        rows[f"{name}.{operation.name}"] = (
            _type(contract, operation.result),
            tuple(
                (p.direction, _type(contract, p.type), str(p.name)) for p in operation.parameters
            ),
            tuple(str(raised.name) for raised in operation.raises),
        )
    return rows


def _name(operation: parser.Operation) -> str:
    return str(operation.name)


def _members(
    contract: parser.Contract, members: tuple[parser.Member, ...]
) -> tuple[tuple[str, str], ...]:
    return tuple((_type(contract, member.type), str(member.name)) for member in members)


def _type(contract: parser.Contract, declared: parser.Type) -> str:
    # IDL of old wants a space between two closing brackets; the meaning is the same without.
    return str(contract.expand(declared)).replace(" >", ">")


def _image_name(enumeration: str, enumerator: str) -> str:
    """`StatusMarkedRollback` is MARKED_ROLLBACK: the prefix goes, and words are set apart."""
    prefix = enumeration.rpartition("::")[2].removeprefix("mq")
    rest = enumerator.removeprefix(prefix)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rest).upper()


# --- From the Python image -----------------------------------------------------------------------


def rows_of_image() -> Rows:
    """The same rows, from what the modules of the image define."""
    rows: Rows = {}
    for module in (cos, mq, coordination, decider, custody):
        for python in _classes(module):
            rows.update(_class_rows(python))
    return rows


def _classes(module: ModuleType) -> list[type]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]


def _class_rows(python: type) -> Rows:
    name = idl_name(python)
    if issubclass(python, enum.Enum):
        ordered = sorted(python, key=lambda member: member.value)
        assert [member.value for member in ordered] == list(range(len(ordered)))
        return {name: ("enum", tuple(member.name for member in ordered))}
    if is_interface(python):
        return _protocol_rows(name, python)
    fields = tuple((_spelled(idl_type), field) for field, idl_type in fields_of(python))
    return {name: ("exception" if issubclass(python, UserException) else "struct", fields)}


def _protocol_rows(name: str, python: type) -> Rows:
    bases = tuple(idl_name(base) for base in python.__bases__ if is_interface(base))
    inherited = {
        op for base in python.__bases__ if is_interface(base) for op in operations_of(base)
    }
    own = {op: o for op, o in operations_of(python).items() if op not in inherited}
    rows: Rows = {name: ("interface", is_local(python), bases, tuple(own))}
    for operation in own.values():
        parameters = [("in", _spelled(t), parameter) for parameter, t in operation.parameters]
        outs = [("out", _spelled(t), parameter) for parameter, t in operation.out]
        rows[f"{name}.{operation.name}"] = (
            "void" if operation.result is None else _spelled(operation.result),
            (*parameters, *outs),
            tuple(idl_name(raised) for raised in operation.raises),
        )
    return rows


def _spelled(idl_type: IdlType) -> str:
    return idl_type.idl


# --- Comparing -----------------------------------------------------------------------------------


def differences(expected: Rows, found: Rows) -> list[str]:
    """One line for each row that only one side has, or that the two write differently."""
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            lines.append(f"{name}: IDL {expected.get(name)}, Python {found.get(name)}")
    return lines


# --- From the servants ---------------------------------------------------------------------------


def rows_of_servant(interface: type, servant: type) -> Rows:
    """Parameters and results of the interface's operations, as the servant's methods write them."""
    return {
        f"{idl_name(interface)}.{name}": _signature(getattr(servant, name, None))
        for name in operations_of(interface)
    }


def _signature(function: object) -> tuple[object, ...]:
    if not inspect.isfunction(function):
        return ("missing",)
    hints = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters)[1:]
    shown = tuple((name, _bare(hints.get(name))) for name in parameters)
    return (*shown, _bare(hints.get("return")))


def _bare(hint: object) -> str:
    """The type as it is written in either place: without ranges, and by the names of classes."""
    if hint is None or hint is type(None):
        return "None"
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
