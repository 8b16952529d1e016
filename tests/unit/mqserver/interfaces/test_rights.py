"""Every operation that a node publishes asks for its right, whatever the orb lets in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from idl import system
from idl.mapping import operations_of
from idl.mq import (
    Mq_Admin,
    Mq_Fifo,
    Mq_Node,
    Mq_Standard,
    mqCompletion,
    mqQueueSettings,
)
from idl.otids import otid_of
from mqserver.permissions import OPERATION_RIGHTS, Need, Permissions, Right
from tests.unit.mqserver.node_world import ALONE, ANY, HEADER, World, batch, calling_as, work

KEY = "000000000000001"
PLAIN = mqQueueSettings(True, False, 0, 0)
Call = Callable[[World], object]

CALLS: dict[str, dict[str, Call]] = {
    "standard": {
        "mqPut": lambda w: w.standard("q").mqPut(None, HEADER, (), b"x"),
        "mqGet": lambda w: w.standard("q").mqGet(None, KEY),
        "mqRead": lambda w: w.standard("q").mqRead(KEY),
        "mqRemove": lambda w: w.standard("q").mqRemove(KEY),
        "mqGetAttribList": lambda w: w.standard("q").mqGetAttribList(KEY),
        "mqStartNotify": lambda w: w.standard("q").mqStartNotify("c", 0),
    },
    "fifo": {
        "mqPut": lambda w: w.fifo("q").mqPut(None, HEADER, (), b"x"),
        "mqGetNext": lambda w: w.fifo("q").mqGetNext(None),
        "mqStartNotify": lambda w: w.fifo("q").mqStartNotify("c", 0),
        "mqSetPriorization": lambda w: w.fifo("q").mqSetPriorization(True),
        "mqGetPriorization": lambda w: w.fifo("q").mqGetPriorization(),
    },
    "node": {
        "getNode": lambda w: w.node.getNode(),
        "countMessages": lambda w: w.node.countMessages("q"),
        "putMany": lambda w: w.node.putMany(ALONE, 0, "q", batch(b"x")),
        "putBulk": lambda w: w.node.putBulk(w.branch(), 1, "q", batch(b"x")),
        "getMany": lambda w: w.node.getMany(ALONE, 0, "q", ANY, 1, 0),
        "moveMany": lambda w: w.node.moveMany("q", "q", ANY, 1, 0),
        "getKeys": lambda w: w.node.getKeys(ALONE, 0, "q", (KEY,)),
        "browse": lambda w: w.node.browse("q", ANY, "", 1),
        "pushDown": lambda w: w.node.pushDown(
            w.branch(), 1, (work("q", b"x", removes=(KEY,)),), mqCompletion.NONE
        ),
        "prepareBranch": lambda w: w.node.prepareBranch(w.branch("n1", 99), 1),
        "rollbackBranch": lambda w: w.node.rollbackBranch(w.branch("n1", 99)),
        "getOutcome": lambda w: w.node.getOutcome(otid_of(bytes(32))),
        "getVersion": lambda w: w.node.getVersion("job"),
        "lockMany": lambda w: w.node.lockMany(w.branch(), "list", "q", ANY, 1),
        "fetchLocked": lambda w: w.node.fetchLocked(w.branch("n1", 99), "list", 0, 1),
        "reserve": lambda w: w.node.reserve("c", "q", ANY, 0, 1, 0),
        "getReservationSize": lambda w: w.node.getReservationSize("theirs", 1),
        "fetchReserved": lambda w: w.node.fetchReserved("theirs", 1, 0, 1),
        "finishReservations": lambda w: w.node.finishReservations("theirs", 1),
        "getFinished": lambda w: w.node.getFinished("theirs"),
    },
    "admin": {
        "mqShutdown": lambda w: w.admin.mqShutdown(),
        "setEnabled": lambda w: w.admin.setEnabled(False),
        "isEnabled": lambda w: w.admin.isEnabled(),
        "getStatus": lambda w: w.admin.getStatus(),
        "createQueue": lambda w: w.admin.createQueue("new", PLAIN),
        "changeQueue": lambda w: w.admin.changeQueue("q", PLAIN),
        "deleteQueue": lambda w: w.admin.deleteQueue("q"),
        "purgeQueue": lambda w: w.admin.purgeQueue("q"),
        "getQueue": lambda w: w.admin.getQueue("q"),
        "listQueues": lambda w: w.admin.listQueues(),
        "listBranches": lambda w: w.admin.listBranches(),
        "decideBranch": lambda w: w.admin.decideBranch(otid_of(bytes(32), "n1"), True),
        "forgetBranch": lambda w: w.admin.forgetBranch(otid_of(bytes(32), "n1")),
        "listConsumers": lambda w: w.admin.listConsumers(),
        "dropConsumer": lambda w: w.admin.dropConsumer("theirs"),
    },
}
INTERFACES = {"standard": Mq_Standard, "fifo": Mq_Fifo, "node": Mq_Node, "admin": Mq_Admin}
EVERY_OPERATION = [(family, name) for family, calls in CALLS.items() for name in calls]
# Whoever is let in may call these: they tell nothing of others, or leave it out.
OPEN = {Need.ANYONE, Need.VISIBLE}


def permissions(*rights: Right, role: str = "nobody") -> Permissions:
    """The owner may do everything, and `eve` has these rights and this role."""
    words = ", ".join(f'"{right.value}"' for right in rights)
    allow = f'[[allow]]\nprincipal = "eve"\nqueues = ["q", "new"]\nrights = [{words}]\n'
    text = '[[allow]]\nprincipal = "local"\nqueues = ["*"]\n'
    text += 'rights = ["read", "write", "browse", "admin"]\n'
    text += allow if rights else ""
    text += f'[roles]\noperator = ["local", "{role}"]\ncoordinator = []\n'
    return Permissions.parse(text)


def prepared(granted: Permissions) -> World:
    """A node with a message, a branch and a consumer that are not `eve`'s."""
    world = World(permissions=granted)
    world.put("q", b"1", b"2")
    world.node.putMany(world.branch("n1", 99), 1, "q", batch(b"x"))
    world.put("p", b"1")
    world.node.reserve("theirs", "p", ANY, 0, 1, 0)
    return world


def test_the_table_has_every_operation_of_every_interface() -> None:
    for family, interface in INTERFACES.items():
        assert set(OPERATION_RIGHTS[family]) == set(operations_of(interface))
        assert set(CALLS[family]) == set(operations_of(interface))


@pytest.mark.parametrize(("family", "operation"), EVERY_OPERATION)
def test_who_has_no_right_is_refused_and_nothing_changes(family: str, operation: str) -> None:
    world = prepared(permissions())
    rule = OPERATION_RIGHTS[family][operation]
    before = [(i.name, i.visible, i.locked, i.settings) for i in world.storage.queues()]
    with calling_as("eve"):
        if rule in OPEN and operation != "getQueue":
            assert CALLS[family][operation](world) in (
                world.node.getNode(),
                (),
                True,
                0,
                world.node.getOutcome(otid_of(bytes(32))),
            )
        else:
            with pytest.raises(system.NO_PERMISSION):
                CALLS[family][operation](world)
    after = [(i.name, i.visible, i.locked, i.settings) for i in world.storage.queues()]
    assert before == after
    assert world.running.queues.is_enabled
    assert not world.shutdowns.is_set()
    world.close()


@pytest.mark.parametrize(
    ("family", "operation"),
    [e for e in EVERY_OPERATION if isinstance(OPERATION_RIGHTS[e[0]][e[1]], Right)],
)
def test_who_has_every_other_right_is_refused_as_well(family: str, operation: str) -> None:
    needed = OPERATION_RIGHTS[family][operation]
    # Who may read may browse.
    others = [
        right
        for right in Right
        if right is not needed and not (needed is Right.BROWSE and right is Right.READ)
    ]
    world = prepared(permissions(*others))
    with calling_as("eve"), pytest.raises(system.NO_PERMISSION):
        CALLS[family][operation](world)
    world.close()


def test_who_may_write_only_cannot_remove_and_who_may_read_only_cannot_put() -> None:
    removing, putting = work("q", removes=(KEY,)), work("q", b"x")
    for right, pushed in ((Right.WRITE, removing), (Right.READ, putting)):
        world = prepared(permissions(right))
        with calling_as("eve"), pytest.raises(system.NO_PERMISSION):
            world.node.pushDown(world.branch(), 1, (pushed,), mqCompletion.NONE)
        world.close()


def test_queues_are_shown_to_those_who_have_some_right_on_them() -> None:
    world = prepared(permissions(Right.WRITE))
    with calling_as("eve"):
        assert [info.queue for info in world.admin.listQueues()] == ["q"]
        assert world.admin.getQueue("q").visible == 2
        with pytest.raises(system.NO_PERMISSION) as hidden:
            world.admin.getQueue("p")
        with pytest.raises(system.NO_PERMISSION) as missing:
            world.admin.getQueue("nowhere")
    assert hidden.value.reason.replace("'p'", "") == missing.value.reason.replace("'nowhere'", "")
    world.close()
