"""Every interface is written once as IDL and once as Python, and the two say the same.

The servants take and return what both say, and the texts compile with a real IDL compiler. That the
comparison would see a difference is shown by making one of every kind at every place.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import coordination as coordinations
from coordinator import custody as custodies
from coordinator import interfaces as transactions
from coordinator import settlement
from idl import coordination, cos, custody, decider, mq, parser
from idl.mapping import is_interface, is_local
from mqserver.interfaces import carried, events, fifo, node, service, standard
from mqserver.interfaces import decider as deciders
from mqserver.transactions import resource
from tests.contract_rows import (
    Declarations,
    differences,
    rows_of_idl,
    rows_of_image,
    rows_of_servant,
)

FOLDER = Path(__file__).parent.parent / "idl"
TEXTS = sorted(FOLDER.glob("*.idl"))
CONTRACT = parser.load(*TEXTS)

# Who serves what. Where an interface is inherited, the servant of the heir has its operations.
SERVANTS: dict[type, type] = {
    mq.Mq_Standard: standard.StandardServant,
    mq.Mq_Fifo: fifo.FifoServant,
    mq.Mq_Service: service.AdminServant,
    mq.Mq_Admin: service.AdminServant,
    mq.Mq_Node: node.NodeServant,
    cos.Resource: resource.ResourceServant,
    coordination.Mq_Settler: resource.SettlerServant,
    cos.TransactionFactory: transactions.FactoryServant,
    cos.Control: transactions.ControlServant,
    cos.Terminator: transactions.TerminatorServant,
    cos.Coordinator: transactions.CoordinatorServant,
    cos.RecoveryCoordinator: transactions.RecoveryCoordinatorServant,
    coordination.Mq_Coordinator: coordinations.CoordinationServant,
    decider.Mq_Decider: deciders.DeciderServant,
    decider.Mq_Settlement: settlement.SettlementServant,
    custody.Mq_Carried: carried.CarriedServant,
    custody.Mq_Custody: custodies.CustodyServant,
    coordination.Mq_TransactionAdmin: coordinations.AdminServant,
    cos.EventChannel: events.ChannelServant,
    cos.ConsumerAdmin: events.ConsumerAdminServant,
    cos.SupplierAdmin: events.SupplierAdminServant,
    cos.ProxyPushSupplier: events.ProxyPushSupplierServant,
    cos.ProxyPullSupplier: events.ProxyPullSupplierServant,
    cos.ProxyPushConsumer: events.ProxyPushConsumerServant,
    cos.ProxyPullConsumer: events.ProxyPullConsumerServant,
}
# Served by those who use us, or marks without operations of their own.
SERVED_BY_OTHERS = {
    cos.PushConsumer,
    cos.PushSupplier,
    cos.PullConsumer,
    cos.PullSupplier,
    cos.Synchronization,
    cos.SubtransactionAwareResource,
    cos.TransactionalObject,
}


def test_the_python_image_says_what_the_idl_says() -> None:
    found = differences(rows_of_idl(CONTRACT, CONTRACT.declarations), rows_of_image())
    assert found == []


@pytest.mark.parametrize("interface", SERVANTS, ids=lambda interface: interface.__name__)
def test_a_servant_takes_and_returns_what_its_interface_says(interface: type) -> None:
    asked = rows_of_servant(interface, interface)
    assert differences(asked, rows_of_servant(interface, SERVANTS[interface])) == []


def test_every_interface_has_a_servant() -> None:
    declared = {
        python
        for module in (cos, mq, coordination, decider, custody)
        for python in vars(module).values()
        if isinstance(python, type) and is_interface(python) and not is_local(python)
    }
    assert declared == SERVANTS.keys() | SERVED_BY_OTHERS


def test_the_comparison_sees_a_servant_that_differs() -> None:
    class Reversed:
        def mqRead(self) -> bool:
            return False

        def mqRemove(self, name: str) -> bool:
            return not name

        def mqGetAttribList(self, key: int) -> mq.mqAttribList:
            return (mq.mqAttribute(str(key), str(key)),)

    asked = rows_of_servant(mq.Mq_Standard, mq.Mq_Standard)
    assert len(differences(asked, rows_of_servant(mq.Mq_Standard, Reversed))) == len(asked)


@pytest.mark.parametrize(
    ("interface", "operations"),
    [
        ("Mq_Standard", "mqPut mqGet mqRead mqRemove mqGetAttribList mqStartNotify"),
        ("Mq_Fifo", "mqPut mqGetNext mqStartNotify mqSetPriorization mqGetPriorization"),
        ("Mq_Service", "mqShutdown setEnabled isEnabled getStatus"),
        ("CosTransactions::Resource", "prepare rollback commit commit_one_phase forget"),
        ("CosTransactions::RecoveryCoordinator", "replay_completion"),
        ("CosTransactions::TransactionFactory", "create recreate"),
        ("CosTransactions::Control", "get_terminator get_coordinator"),
        ("CosTransactions::Terminator", "commit rollback"),
        ("CosTransactions::Synchronization", "before_completion after_completion"),
        ("CosEventComm::PullSupplier", "pull try_pull disconnect_pull_supplier"),
    ],
)
def test_an_interface_of_the_documents_has_all_its_operations(
    interface: str, operations: str
) -> None:
    declared = CONTRACT.declarations[interface]
    assert isinstance(declared, parser.Interface)
    assert [str(operation.name) for operation in declared.operations] == operations.split()


@pytest.mark.needs("omniidl")
@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_a_real_compiler_takes_the_text_without_a_word(text: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["omniidl", f"-I{FOLDER}", f"-C{tmp_path}", "-bdump", str(text)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- The comparison sees every difference --------------------------------------------------------

NOWHERE = parser.Position("mutated", 1, 1)
OTHER = parser.Basic("double")
STRANGER = parser.Scoped(parser.Name("CosTransactions::Unavailable", NOWHERE))
RENAMED = parser.Name("renamed", NOWHERE)


def mutations(declarations: Declarations) -> Iterator[tuple[str, Declarations]]:
    """Each declaration left out, and each changed in every single place that it has."""
    for name, declared in declarations.items():
        if isinstance(declared, parser.Typedef | parser.Forward | parser.Const):
            continue
        yield f"{name} left out", {k: v for k, v in declarations.items() if k != name}
        for what, changed in _changed(declared):
            yield f"{name}: {what}", {**declarations, name: changed}


def _changed(declared: Any) -> Iterator[tuple[str, Any]]:
    match declared:
        case parser.Enum(enumerators=names):
            for what, others in _lists(names, [lambda _: RENAMED]):
                yield f"enumerators {what}", replace(declared, enumerators=others)
        case parser.Struct(members=members) | parser.ExceptionDeclaration(members=members):
            for what, others in _lists(members, [_renamed, _retyped]):
                yield f"members {what}", replace(declared, members=others)
        case parser.Interface():
            yield "local", replace(declared, local=not declared.local)
            yield "bases", replace(declared, bases=(*declared.bases, STRANGER))
            yield from _changed_operations(declared)


def _changed_operations(declared: parser.Interface) -> Iterator[tuple[str, parser.Interface]]:
    for what, operations in _lists(declared.operations, []):
        yield f"operations {what}", _with_operations(declared, operations)
    for position, operation in enumerate(declared.operations):
        for what, changed in _changed_operation(operation):
            others = list(declared.operations)
            others[position] = changed
            yield f"{operation.name} {what}", _with_operations(declared, tuple(others))


def _changed_operation(operation: parser.Operation) -> Iterator[tuple[str, parser.Operation]]:
    yield "renamed", replace(operation, name=RENAMED)
    yield "result", replace(operation, result=OTHER)
    for what, parameters in _lists(operation.parameters, [_renamed, _retyped, _turned]):
        yield f"parameters {what}", replace(operation, parameters=parameters)
    for what, raises in _lists(operation.raises, []):
        yield f"raises {what}", replace(operation, raises=raises)
    yield "raises one more", replace(operation, raises=(*operation.raises, STRANGER))


def _with_operations(
    declared: parser.Interface, operations: tuple[parser.Operation, ...]
) -> parser.Interface:
    rest = tuple(part for part in declared.body if not isinstance(part, parser.Operation))
    return replace(declared, body=(*rest, *operations))


def _lists(values: tuple[Any, ...], changes: list[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for position, value in enumerate(values):
        before, after = values[:position], values[position + 1 :]
        yield f"without {position}", (*before, *after)
        if after:
            yield f"{position} swapped with the next", (*before, after[0], value, *after[1:])
        for change in changes:
            yield f"{position} changed", (*before, change(value), *after)


def _renamed(part: Any) -> Any:
    return replace(part, name=RENAMED)


def _retyped(part: Any) -> Any:
    return replace(part, type=OTHER)


def _turned(part: Any) -> Any:
    return replace(part, direction="in" if part.direction == "out" else "out")


def test_the_comparison_sees_every_single_difference() -> None:
    image = rows_of_image()
    unseen = []
    count = 0
    for what, declarations in mutations(CONTRACT.declarations):
        count += 1
        if not differences(rows_of_idl(CONTRACT, declarations), image):
            unseen.append(what)
    assert unseen == []
    assert count > 1500
