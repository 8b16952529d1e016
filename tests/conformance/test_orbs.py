"""Every way of calling keeps the same promises: over the network, and directly in one process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from idl import cos, mq, system
from idl.call import Address, Call, Orb, current_call, foretelling, repeating, within
from idl.local import LocalOrb
from idl.mapping import InvalidValue
from idl.orb import NetworkOrb
from idl.proxies import Proxy, is_foretold, make_proxy, ready, reference_of, started
from idl.turns import prompt

HEADER = mq.mqHeader(65535, 0, mq.mqTimestamp(2**32 - 1, 999_999), "sender")
CONTEXT = cos.PropagationContext(
    30, cos.TransIdentity(None, None, cos.otid_t(7, 1, b"tid")), (), {"a": (1, b"x")}
)


@pytest.fixture(params=["network", "network in turns", "network, awake", "direct"])
def orb(request: pytest.FixtureRequest) -> Iterator[Orb]:
    made: Orb = LocalOrb()
    if request.param != "direct":
        takes_turns = request.param == "network in turns"
        awake_s = 0.001 if request.param == "network, awake" else 0.0
        made = NetworkOrb(Address("127.0.0.1", 0), takes_turns=takes_turns, awake_s=awake_s)
    yield made
    made.close()


class Stranger(system.TRANSIENT):
    """A standard exception of somebody's own making."""


class Queue:
    """A servant of Mq_Fifo that remembers, and fails in every way that a servant can."""

    def __init__(self) -> None:
        self.messages: list[tuple[mq.mqHeader, mq.mqAttribList, bytes]] = []
        self.calls: list[Call] = []
        self.controls: list[cos.Control | None] = []
        self.is_prioritized = False

    @prompt
    def mqPut(
        self,
        ctrl: cos.Control | None,
        header: mq.mqHeader,
        attrib: mq.mqAttribList,
        data: bytes,
    ) -> None:
        self.calls.append(current_call())
        self.controls.append(ctrl)
        match data:
            case b"full":
                raise mq.QueueFull("orders", 10)
            case b"undeclared":
                raise mq.Deadlock("somebody")
            case b"rolled back":
                raise system.TRANSACTION_ROLLEDBACK("timeout", system.Completion.YES)
            case b"stranger":
                raise Stranger("not one of CORBA's own", system.Completion.NO)
            case b"defect":
                raise KeyError("/secret/path")
        self.messages.append((header, attrib, data))

    @prompt
    def mqGetNext(self, ctrl: cos.Control | None) -> tuple[mq.mqHeader, mq.mqAttribList, bytes]:
        if not self.messages:
            raise mq.QueueEmpty("orders")
        return self.messages.pop(0)

    def mqStartNotify(self, channelName: str, groupID: int) -> None:
        raise NotImplementedError

    def mqSetPriorization(self, b: bool) -> None:
        self.is_prioritized = b

    def mqGetPriorization(self) -> bool:
        # The wrong type on purpose: what a servant returns is checked too.
        return self.is_prioritized if self.is_prioritized is not None else 7


def test_what_is_put_comes_back_as_it_was(orb: Orb) -> None:
    fifo = orb.publish(Queue(), mq.Mq_Fifo)
    attributes = (mq.mqAttribute("k", "ü"), mq.mqAttribute("k", ""))
    fifo.mqPut(None, HEADER, attributes, bytes(range(256)))
    assert fifo.mqGetNext(None) == (HEADER, attributes, bytes(range(256)))


def test_arguments_may_be_named(orb: Orb) -> None:
    fifo = orb.publish(Queue(), mq.Mq_Fifo)
    fifo.mqPut(None, HEADER, data=b"x", attrib=())
    assert fifo.mqGetNext(ctrl=None)[2] == b"x"
    with pytest.raises(system.BAD_PARAM, match="mqPut takes"):
        fifo.mqPut(None, HEADER, data=b"x", attributes=())  # type: ignore[call-arg]


def test_a_declared_exception_arrives_as_itself(orb: Orb) -> None:
    fifo = orb.publish(Queue(), mq.Mq_Fifo)
    with pytest.raises(mq.QueueFull) as told:
        fifo.mqPut(None, HEADER, (), b"full")
    assert told.value == mq.QueueFull("orders", 10)


def test_a_standard_exception_arrives_with_what_is_known(orb: Orb) -> None:
    fifo = orb.publish(Queue(), mq.Mq_Fifo)
    with pytest.raises(system.TRANSACTION_ROLLEDBACK) as told:
        fifo.mqPut(None, HEADER, (), b"rolled back")
    assert (told.value.reason, told.value.completed) == ("timeout", system.Completion.YES)


def test_a_standard_exception_of_one_s_own_arrives_as_the_closest_there_is(orb: Orb) -> None:
    fifo = orb.publish(Queue(), mq.Mq_Fifo)
    with pytest.raises(system.TRANSIENT, match="not one of CORBA's own"):
        fifo.mqPut(None, HEADER, (), b"stranger")


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_proxy_must_have_a_positive_and_finite_timeout(orb: Orb, timeout_s: float) -> None:
    reference = orb.reference_of(orb.publish(Queue(), mq.Mq_Fifo))
    with pytest.raises(InvalidValue, match="positive, finite"):
        orb.proxy(reference, mq.Mq_Fifo, timeout_s=timeout_s)


@pytest.mark.parametrize("data", [b"undeclared", b"defect"])
def test_any_other_failure_is_unknown_and_told_in_the_log_only(
    orb: Orb, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    servant = Queue()
    fifo = orb.publish(servant, mq.Mq_Fifo)
    with caplog.at_level(logging.ERROR, "oncemq.orb"), pytest.raises(system.UNKNOWN) as told:
        fifo.mqPut(None, HEADER, (), data)
    assert told.value.completed is system.Completion.MAYBE
    assert servant.calls[0].request_id.hex() in str(told.value)
    assert servant.calls[0].request_id.hex() in caplog.text
    assert "secret" not in str(told.value)
    fifo.mqSetPriorization(True)


def test_a_servant_s_wrong_result_does_not_reach_the_caller(orb: Orb) -> None:
    servant = Queue()
    fifo = orb.publish(servant, mq.Mq_Fifo)
    servant.is_prioritized = None  # type: ignore[assignment]
    with pytest.raises(system.UNKNOWN):
        fifo.mqGetPriorization()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((None, HEADER, ()), "mqPut has 4 values, 3 were given"),
        ((None, HEADER, (), "text"), "mqPut.data: 'text' is not a bytes"),
        ((None, None, (), b""), "mqPut.header: None is not a mqHeader"),
        ((None, HEADER, [], b""), "mqPut.attrib: [] is not a tuple"),
        ((object(), HEADER, (), b""), "object is not a published Control"),
        ((None, HEADER, ("x",), b""), "mqPut.attrib[0]: 'x' is not a mqAttribute"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_done(
    orb: Orb, arguments: tuple[object, ...], text: str
) -> None:
    servant = Queue()
    fifo = orb.publish(servant, mq.Mq_Fifo)
    with pytest.raises(system.BAD_PARAM) as told:
        fifo.mqPut(*arguments)  # type: ignore[arg-type]
    assert text in str(told.value)
    assert told.value.completed is system.Completion.NO
    assert servant.calls == []


def test_an_object_that_was_withdrawn_does_not_exist(orb: Orb) -> None:
    fifo = orb.publish(Queue(), mq.Mq_Fifo, "Mq_Fifo/orders")
    orb.withdraw(fifo)
    with pytest.raises(system.OBJECT_NOT_EXIST, match="Mq_Fifo/orders"):
        fifo.mqGetPriorization()
    orb.publish(Queue(), mq.Mq_Fifo, "Mq_Fifo/orders")
    fifo.mqGetPriorization()


def test_an_operation_of_another_interface_does_not_exist(orb: Orb) -> None:
    reference = orb.reference_of(orb.publish(Queue(), mq.Mq_Fifo))
    service = orb.proxy(reference, mq.Mq_Service)
    with pytest.raises(system.BAD_OPERATION, match="isEnabled"):
        service.isEnabled()


def test_a_name_is_given_once(orb: Orb) -> None:
    orb.publish(Queue(), mq.Mq_Fifo, "q")
    with pytest.raises(InvalidValue, match="published as 'q' already"):
        orb.publish(Queue(), mq.Mq_Fifo, "q")
    with pytest.raises(InvalidValue, match="object name"):
        orb.publish(Queue(), mq.Mq_Fifo, "../q")


def test_names_that_were_not_given_cannot_be_guessed(orb: Orb) -> None:
    names = {orb.reference_of(orb.publish(Queue(), mq.Mq_Fifo)) for _ in range(50)}
    assert len(names) == 50
    assert all(len(name.partition("@")[0]) >= len("PYRO:object/") + 32 for name in names)


def test_a_servant_knows_who_calls_and_in_which_transaction(orb: Orb) -> None:
    servant = Queue()
    fifo = orb.publish(servant, mq.Mq_Fifo)
    with within(CONTEXT), repeating(b"k" * 16):
        fifo.mqPut(None, HEADER, (), b"1")
    fifo.mqPut(None, HEADER, (), b"2")
    first, second = servant.calls
    assert first.transaction == CONTEXT
    assert first.request_id == b"k" * 16
    assert first.principal.name == "local"
    assert second.transaction is None
    assert second.request_id != first.request_id


def test_a_call_made_while_serving_carries_nothing_of_the_served_one(orb: Orb) -> None:
    inner = Queue()
    far = orb.publish(inner, mq.Mq_Fifo)

    class Forwarding(Queue):
        def mqSetPriorization(self, b: bool) -> None:
            far.mqPut(None, HEADER, (), b"forwarded")

    with within(CONTEXT), repeating(b"k" * 16):
        orb.publish(Forwarding(), mq.Mq_Fifo).mqSetPriorization(True)
    assert inner.calls[0].transaction is None
    assert inner.calls[0].request_id != b"k" * 16


class Registering:
    """As much of a coordinator as calls back the resource that it is handed."""

    def __init__(self) -> None:
        self.resources: list[cos.Resource] = []

    def register_resource(self, r: cos.Resource | None) -> cos.RecoveryCoordinator:
        assert r is not None
        self.resources.append(r)
        if r.prepare() is not cos.Vote.READ_ONLY:
            raise cos.Inactive
        return make_proxy_of(r)

    def __getattr__(self, name: str) -> object:
        return lambda *arguments: (_ for _ in ()).throw(NotImplementedError(name))


def make_proxy_of(resource: cos.Resource) -> cos.RecoveryCoordinator:
    reference = reference_of(cast(Proxy, resource))
    return make_proxy(reference, cos.RecoveryCoordinator, resource._caller)  # type: ignore[attr-defined]


class Voting:
    """A resource that votes as it is told."""

    def __init__(self, vote: cos.Vote) -> None:
        self.vote = vote

    def prepare(self) -> cos.Vote:
        return self.vote

    def rollback(self) -> None:
        raise cos.HeuristicCommit

    def commit(self) -> None:
        raise cos.NotPrepared

    def commit_one_phase(self) -> None:
        raise cos.HeuristicHazard

    def forget(self) -> None:
        raise system.NO_IMPLEMENT


def test_references_travel_both_ways_and_are_called(orb: Orb) -> None:
    registering: Any = Registering()
    coordinator = orb.publish(registering, cos.Coordinator)
    resource = orb.publish(Voting(cos.Vote.READ_ONLY), cos.Resource)
    recovery = coordinator.register_resource(resource)
    assert orb.reference_of(recovery) == orb.reference_of(resource)
    assert registering.resources == [resource]
    other = orb.publish(Voting(cos.Vote.COMMIT), cos.Resource)
    with pytest.raises(cos.Inactive):
        coordinator.register_resource(other)


@pytest.mark.parametrize(
    ("operation", "raised"),
    [
        ("rollback", cos.HeuristicCommit),
        ("commit", cos.NotPrepared),
        ("commit_one_phase", cos.HeuristicHazard),
        ("forget", system.NO_IMPLEMENT),
    ],
)
def test_each_outcome_of_a_resource_arrives(
    orb: Orb, operation: str, raised: type[Exception]
) -> None:
    resource = orb.publish(Voting(cos.Vote.COMMIT), cos.Resource)
    with pytest.raises(raised):
        getattr(resource, operation)()


def test_sixteen_threads_share_one_proxy_and_each_gets_its_own_answer(orb: Orb) -> None:
    class Echo(Queue):
        def mqGetNext(self, ctrl: cos.Control | None) -> tuple[mq.mqHeader, mq.mqAttribList, bytes]:
            context = current_call().transaction
            assert context is not None
            return HEADER, (), context.current.otid.tid

    fifo = orb.publish(Echo(), mq.Mq_Fifo)
    wrong: list[bytes] = []

    def ask(number: int) -> None:
        for turn in range(40):
            tid = b"%d/%d" % (number, turn)
            identity = cos.TransIdentity(None, None, cos.otid_t(1, 0, tid))
            with within(cos.PropagationContext(0, identity, (), None)):
                answer = fifo.mqGetNext(None)[2]
            if answer != tid:
                wrong.append(answer)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_several_calls_are_under_way_at_once_where_the_orb_can(orb: Orb) -> None:
    fifo = orb.publish(Queue(), mq.Mq_Fifo)
    # The first call makes the connection that the next one can be started on.
    fifo.mqSetPriorization(True)
    waiting = started(fifo.mqGetPriorization)
    assert (waiting is None) is isinstance(orb, LocalOrb)
    assert (waiting or fifo.mqGetPriorization)() is True
    failing = started(fifo.mqGetNext, None) or (lambda: fifo.mqGetNext(None))
    with pytest.raises(mq.QueueEmpty):
        failing()
    assert started(Queue().mqGetPriorization) is None


def test_a_call_that_is_ready_is_made_when_it_is_asked_for(orb: Orb) -> None:
    servant = Queue()
    fifo = orb.publish(servant, mq.Mq_Fifo)
    change = ready(fifo.mqSetPriorization, (True,))
    assert not servant.is_prioritized
    change()
    assert servant.is_prioritized
    failing = ready(fifo.mqGetNext, (None,))
    with pytest.raises(mq.QueueEmpty):
        failing()
    ready(fifo.mqSetPriorization, (False,))
    assert ready(fifo.mqGetPriorization, ())() is True
    with pytest.raises(system.BAD_PARAM):
        ready(fifo.mqSetPriorization, ("yes",))()
    # Of what is no proxy it is a call like any other.
    assert ready(servant.mqGetPriorization, ())() is True


class Foretelling(Queue):
    """Foretells its answer, which comes when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()

    @prompt
    def mqGetPriorization(self) -> bool:
        foretelling()()
        assert self.may_answer.wait(10.0)
        return True


def test_an_answer_can_be_foretold_where_the_orb_can(orb: Orb) -> None:
    servant = Foretelling()
    fifo = orb.publish(servant, mq.Mq_Fifo)
    fifo.mqSetPriorization(True)
    waiting = started(fifo.mqGetPriorization)
    if waiting is not None:
        # The answer cannot be there yet.
        assert is_foretold(waiting)
    servant.may_answer.set()
    assert (waiting or fifo.mqGetPriorization)() is True
    # Who does not listen is not disturbed, and what is not foretold is simply there.
    assert fifo.mqGetPriorization() is True
    prompt_one = started(fifo.mqSetPriorization, True)
    if prompt_one is not None:
        assert not is_foretold(prompt_one)
        prompt_one()


def test_objects_of_a_family_are_found_by_their_names_and_need_not_be_kept(orb: Orb) -> None:
    def find(rest: str) -> Queue:
        if not rest.isdigit():
            raise InvalidValue(f"{rest!r} is not a number")
        queue = Queue()
        queue.is_prioritized = int(rest) % 2 == 1
        return queue

    orb.publish_family("numbered", find, mq.Mq_Fifo)
    answers = [orb.member(f"numbered/{n}", mq.Mq_Fifo).mqGetPriorization() for n in range(4)]
    assert answers == [False, True, False, True]
    with pytest.raises(system.OBJECT_NOT_EXIST, match="is not a number"):
        orb.member("numbered/x", mq.Mq_Fifo).mqGetPriorization()
    with pytest.raises(system.OBJECT_NOT_EXIST):
        orb.member("unnumbered/1", mq.Mq_Fifo).mqGetPriorization()
    with pytest.raises(system.BAD_OPERATION):
        orb.member("numbered/1", mq.Mq_Service).isEnabled()
    with pytest.raises(InvalidValue, match="already"):
        orb.publish_family("numbered", find, mq.Mq_Fifo)


def test_a_closed_orb_refuses(orb: Orb) -> None:
    fifo = orb.publish(Queue(), mq.Mq_Fifo)
    fifo.mqSetPriorization(True)
    orb.close()
    with pytest.raises(system.TRANSIENT):
        fifo.mqSetPriorization(True)


def test_authorisation_is_asked_for_each_call_before_anything_else() -> None:
    asked: list[tuple[str, str, str]] = []

    def authorize(call: Call, object_name: str, operation: str) -> None:
        asked.append((call.principal.name, object_name, operation))
        if operation == "mqSetPriorization" or object_name == "hidden":
            raise system.NO_PERMISSION

    direct = LocalOrb(authorize)
    network = NetworkOrb(Address("127.0.0.1", 0), authorize=authorize)
    for orb in (direct, network):
        fifo = orb.publish(Queue(), mq.Mq_Fifo, "orders")
        fifo.mqGetPriorization()
        with pytest.raises(system.NO_PERMISSION):
            fifo.mqSetPriorization(True)
        hidden = orb.reference_of(fifo).replace("orders", "hidden")
        with pytest.raises(system.NO_PERMISSION):
            orb.proxy(hidden, mq.Mq_Fifo).mqGetPriorization()
    assert asked[:3] == asked[3:]
    network.close()
